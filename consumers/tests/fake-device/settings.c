// SPDX-License-Identifier: GPL-2.0
/*
 * The settings: words `name=value`.
 *
 * | word | effect |
 * |---|---|
 * | LIMIT=N | a limit of struct ib_device_attr, such as max_mr; -1: rxe's own |
 * | order=cyclic|lowest|lifo|random | the next index of a memory region |
 * | index_bits=N | width of an index; 0: rxe's own |
 * | user_byte=N | low byte of the keys of reg_user_mr(); -1: random |
 * | fence=device|real|lie | the meaning of the end of a key (enum fake_fence) |
 * | lie_ms=N | time for which a key outlasts its end with fence=lie |
 * | needs_udata=0|1 | reg_user_mr() without udata is refused |
 * | rereg=0|1 | rights of user memory can be changed in place |
 * | bounces=0|1 | DMA is said to bounce; no data can move then |
 * | delay=VERB:US:TIMES | TIMES calls of the verb take as many microseconds more; without TIMES: all |
 * | refuse=VERB:ERRNO:SKIP:TIMES | after SKIP calls, TIMES calls are refused; -1: all; ERRNO 0: none |
 * | remove=VERB:N | the device is removed during the N-th call from now on |
 * | end_lies=1 | keys that outlast their end, end now |
 * | reset=1 | all counters are 0, no verb is delayed or refused |
 * | default=1 | every setting is as at first, and reset=1 |
 */
#include <linux/kstrtox.h>
#include <linux/seq_file.h>
#include <linux/string.h>

#include "fake.h"

struct fake_settings fake_settings;
struct fake_calls fake_calls[FAKE_VERB_COUNT];
atomic64_t fake_without_udata;

const char * const fake_verbs[FAKE_VERB_COUNT] = {
	[FAKE_ALLOC_PD] = "alloc_pd",
	[FAKE_DEALLOC_PD] = "dealloc_pd",
	[FAKE_CREATE_CQ] = "create_cq",
	[FAKE_DESTROY_CQ] = "destroy_cq",
	[FAKE_CREATE_QP] = "create_qp",
	[FAKE_MODIFY_QP] = "modify_qp",
	[FAKE_DESTROY_QP] = "destroy_qp",
	[FAKE_ALLOC_MR] = "alloc_mr",
	[FAKE_REG_USER_MR] = "reg_user_mr",
	[FAKE_DEREG_MR] = "dereg_mr",
	[FAKE_MAP_MR_SG] = "map_mr_sg",
	[FAKE_POST_SEND] = "post_send",
	[FAKE_POST_RECV] = "post_recv",
};

#define LIMIT(member) { #member, offsetof(struct ib_device_attr, member) }

/* Each is an integer of 32 bits. */
const struct fake_limit_of fake_limits[FAKE_LIMIT_COUNT] = {
	[FAKE_MAX_QP] = LIMIT(max_qp),
	[FAKE_MAX_CQ] = LIMIT(max_cq),
	[FAKE_MAX_MR] = LIMIT(max_mr),
	[FAKE_MAX_PD] = LIMIT(max_pd),
	[FAKE_OBJECTS] = LIMIT(max_qp_wr),
	LIMIT(max_send_sge),
	LIMIT(max_recv_sge),
	LIMIT(max_sge_rd),
	LIMIT(max_cqe),
	LIMIT(max_qp_rd_atom),
	LIMIT(max_qp_init_rd_atom),
	LIMIT(max_fast_reg_page_list_len),
	LIMIT(atomic_cap),
};

static const char * const orders[] = { "cyclic", "lowest", "lifo", "random" };
static const char * const fences[] = { "device", "real", "lie" };

static void reset(void)
{
	enum fake_verb i;

	for (i = 0; i < FAKE_VERB_COUNT; i++) {
		struct fake_calls *calls = &fake_calls[i];

		WRITE_ONCE(calls->err, 0);
		WRITE_ONCE(calls->delay_us, 0);
		atomic64_set(&calls->count, 0);
		atomic64_set(&calls->refused, 0);
		atomic_set(&calls->remove, 0);
	}
	atomic64_set(&fake_without_udata, 0);
}

/* Reads `VERB:N:…` into @calls and up to @max numbers. Returns the number of numbers. */
static int verb_and_numbers(char *value, struct fake_calls **calls, int *numbers, int max)
{
	int at = match_string(fake_verbs, FAKE_VERB_COUNT, strsep(&value, ":"));
	int n;

	if (at < 0)
		return at;
	*calls = &fake_calls[at];
	for (n = 0; value; n++) {
		if (n == max || kstrtoint(strsep(&value, ":"), 0, &numbers[n]))
			return -EINVAL;
	}
	return n;
}

static int set_of_verb(const char *name, char *value)
{
	struct fake_calls *calls;
	int numbers[3] = {};
	int n = verb_and_numbers(value, &calls, numbers, ARRAY_SIZE(numbers));

	if (n < 0)
		return n;
	if (!strcmp(name, "delay") && (n == 1 || n == 2)) {
		atomic_set(&calls->delays, n == 2 ? numbers[1] : -1);
		WRITE_ONCE(calls->delay_us, numbers[0]);
	} else if (!strcmp(name, "remove") && n == 1) {
		atomic_set(&calls->remove, numbers[0]);
	} else if (!strcmp(name, "refuse") && n == 3) {
		WRITE_ONCE(calls->err, 0);
		atomic_set(&calls->skip, numbers[1]);
		atomic_set(&calls->times, numbers[2]);
		/* Pairs with the load in begin(): a call that sees the error sees the numbers. */
		smp_store_release(&calls->err, -numbers[0]);
	} else {
		return -EINVAL;
	}
	return 0;
}

static int limit_named(const char *name)
{
	int i;

	for (i = 0; i < FAKE_LIMIT_COUNT; i++)
		if (!strcmp(fake_limits[i].name, name))
			return i;
	return -EINVAL;
}

void fake_default(void)
{
	struct fake_settings *all = &fake_settings;
	int i;

	*all = (struct fake_settings){ .user_byte = -1, .rereg = true, .lie_ms = 200 };
	for (i = 0; i < FAKE_LIMIT_COUNT; i++)
		all->limits[i] = -1;
	reset();
}

static int set_one(const char *name, char *value)
{
	struct fake_settings *all = &fake_settings;
	int at, number;

	if (!value)
		return -EINVAL;
	if (strchr(value, ':'))
		return set_of_verb(name, value);
	if (!strcmp(name, "order")) {
		at = match_string(orders, ARRAY_SIZE(orders), value);
		if (at >= 0)
			all->order = at;
		return min(at, 0);
	}
	if (!strcmp(name, "fence")) {
		at = match_string(fences, ARRAY_SIZE(fences), value);
		if (at >= 0)
			all->fence = at;
		return min(at, 0);
	}
	if (kstrtoint(value, 0, &number))
		return -EINVAL;
	at = limit_named(name);
	if (at >= 0)
		all->limits[at] = number;
	else if (!strcmp(name, "index_bits") && number >= 0 && number <= 24)
		all->index_bits = number;
	else if (!strcmp(name, "user_byte") && number >= -1 && number <= 255)
		all->user_byte = number;
	else if (!strcmp(name, "lie_ms") && number >= 0)
		all->lie_ms = number;
	else if (!strcmp(name, "needs_udata"))
		all->needs_udata = number;
	else if (!strcmp(name, "rereg"))
		all->rereg = number;
	else if (!strcmp(name, "bounces"))
		all->bounces = number;
	else if (!strcmp(name, "end_lies"))
		fake_end_lies();
	else if (!strcmp(name, "reset"))
		reset();
	else if (!strcmp(name, "default"))
		fake_default();
	else
		return -EINVAL;
	return 0;
}

/* Sets the words of @text, which is changed. An error leaves the words before it set. */
int fake_set(char *text)
{
	char *word, *name;
	int ret;

	while ((word = strsep(&text, " \t\n"))) {
		if (!*word)
			continue;
		name = strsep(&word, "=");
		ret = set_one(name, word);
		if (ret)
			return ret;
	}
	return 0;
}

int fake_show(struct seq_file *s, void *unused)
{
	const struct fake_settings *all = &fake_settings;
	int i;

	for (i = 0; i < FAKE_LIMIT_COUNT; i++)
		if (all->limits[i] >= 0)
			seq_printf(s, "%s=%lld ", fake_limits[i].name, all->limits[i]);
	seq_printf(s, "order=%s index_bits=%u user_byte=%d fence=%s lie_ms=%u ",
		   orders[all->order], all->index_bits, all->user_byte, fences[all->fence],
		   all->lie_ms);
	seq_printf(s, "needs_udata=%d rereg=%d bounces=%d\n", all->needs_udata, all->rereg,
		   all->bounces);
	return 0;
}
