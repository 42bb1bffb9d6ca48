// SPDX-License-Identifier: MIT OR Apache-2.0
/* Cases of fi_cases.c: messages by rings, over kshm. */
#include <sys/mman.h>

/* Returns the number of pairs of rings that this process has mapped: only these begin at the second
 * page of their file. */
static int mapped_rings(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];
	int n = 0;

	CHECK(maps);
	while (fgets(line, sizeof(line), maps))
		n += strstr(line, "[kfabric]") && strstr(line, " rw-s 00001000 ");
	fclose(maps);
	return n;
}

/* Reads completions of both ends until end `e` has one, which is returned. */
static struct fi_cq_data_entry polled(struct end *e, struct end *other)
{
	struct fi_cq_data_entry got;
	struct fi_cq_err_entry err = { 0 };
	long start = now_ms();

	while (now_ms() - start < LIMIT_MS) {
		ssize_t n = fi_cq_read(e->cq, &got, 1);

		if (n == 1)
			return got;
		if (n == -FI_EAVAIL) {
			fi_cq_readerr(e->cq, &err, 0);
			fail(__LINE__, "a completion", -err.err);
		}
		GIVES(-FI_EAGAIN, n);
		fi_cq_read(other->cq, NULL, 0);
	}
	fail(__LINE__, "no completion", 0);
	return got;
}

/* Makes pairs with changed hints, and returns whether they have rings. */
static int has_rings(enum fi_progress progress, uint64_t order, int counters)
{
	struct fi_info *hints = hints_of(info->domain_attr->name), *found = NULL, *first = info;
	struct fi_cntr_attr attr = { .events = FI_CNTR_EVENTS_COMP };
	struct fid_domain *old = domain;
	struct fid_cntr *counter = NULL;
	struct end a, b;
	int before = mapped_rings(), n;

	hints->domain_attr->data_progress = progress;
	hints->tx_attr->msg_order = order;
	hints->src_addr = malloc(info->src_addrlen);
	memcpy(hints->src_addr, info->src_addr, info->src_addrlen);
	hints->src_addrlen = info->src_addrlen;
	hints->addr_format = info->addr_format;
	OK(fi_getinfo(info->fabric_attr->api_version, NULL, NULL, 0, hints, &found));
	fi_freeinfo(hints);
	CHECK(!progress || found->domain_attr->data_progress == progress);
	CHECK((found->tx_attr->msg_order & order) == order);
	info = found;
	OK(fi_domain(fabric, info, &domain, NULL));
	if (counters)
		OK(fi_cntr_open(domain, &attr, &counter, NULL));
	to_bind[0] = to_bind[1] = counter;
	pair(&a, &b);
	to_bind[0] = to_bind[1] = NULL;
	OK(fi_recv(b.ep, b.mem, 64, fi_mr_desc(b.mr), 0, &b));
	OK(fi_send(a.ep, a.mem, 64, fi_mr_desc(a.mr), 0, &a));
	CHECK(polled(&b, &a).len == 64);
	polled(&a, &b);
	n = mapped_rings() - before;
	unpair(&a, &b);
	if (counter)
		OK(fi_close(&counter->fid));
	OK(fi_close(&domain->fid));
	fi_freeinfo(found);
	info = first;
	domain = old;
	CHECK(n == 0 || n == 2);
	return n == 2;
}

/* Rings are used if the program asks for manual progress, or the user sets the parameter, and if the
 * program needs nothing that rings lack. */
static void rings_chosen(void)
{
	const char *set = getenv("FI_KFABRIC_RINGS");
	int wanted = set && !strcmp(set, "1"), allowed = !set || wanted;

	CHECK(has_rings(FI_PROGRESS_UNSPEC, 0, 0) == wanted);
	CHECK(has_rings(FI_PROGRESS_MANUAL, FI_ORDER_SAS | FI_ORDER_SAW, 0) == allowed);
	CHECK(!has_rings(FI_PROGRESS_AUTO, 0, 0));
	CHECK(!has_rings(FI_PROGRESS_MANUAL, FI_ORDER_WAS, 0));
	CHECK(!has_rings(FI_PROGRESS_MANUAL, FI_ORDER_RAS, 0));
	CHECK(!has_rings(FI_PROGRESS_MANUAL, 0, 1));
	if (!wanted) {
		/* Without the parameter: automatic progress, and all orders. */
		CHECK(info->domain_attr->data_progress == FI_PROGRESS_AUTO);
		CHECK(!shm || info->tx_attr->msg_order & FI_ORDER_WAS);
	}
}

/* Memory of its own mapping, registered. */
static uint8_t *lend(struct fid_mr **mr)
{
	uint8_t *mem = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(mem != MAP_FAILED);
	OK(fi_mr_reg(domain, mem, LEN, RIGHTS, 0, 0, 0, mr, NULL));
	return mem;
}

/* Closes a region and unmaps its memory: any later access ends this program. */
static void take_back(uint8_t *mem, struct fid_mr *mr)
{
	OK(fi_close(&mr->fid));
	OK(munmap(mem, LEN));
}

/* A region is closed while receives and messages use it, whole or in part. */
static void rings_closed_region(void)
{
	struct fi_cq_data_entry got;
	struct fid_mr *mr, *part;
	struct end a, b;
	uint8_t *mem, *piece;
	int sent = 0;

	if (!rings)
		return;
	pair(&a, &b);
	fill(a.mem, LEN, 3);
	/* Two posted receives; the third one has other memory, and gets the message. */
	mem = lend(&mr);
	OK(fi_recv(b.ep, mem, 64, fi_mr_desc(mr), 0, mem));
	OK(fi_recv(b.ep, b.mem, 64, fi_mr_desc(b.mr), 0, &b));
	OK(fi_recv(b.ep, mem + 64, 64, fi_mr_desc(mr), 0, mem + 64));
	take_back(mem, mr);
	CHECK(failure(b.cq, mem).err == FI_ECANCELED);
	CHECK(failure(b.cq, mem + 64).err == FI_ECANCELED);
	OK(fi_send(a.ep, a.mem, 64, fi_mr_desc(a.mr), 0, &a));
	completion(a.cq, &a, FI_SEND);
	completion(b.cq, &b, FI_RECV);
	CHECK(!memcmp(a.mem, b.mem, 64));

	/* Messages that wait for space. */
	mem = lend(&mr);
	fill(mem, LEN, 4);
	while (sent < 12) {
		OK(fi_send(a.ep, mem + sent, 20000, fi_mr_desc(mr), 0, &a));
		sent++;
	}
	OK(fi_send(a.ep, mem, LEN, fi_mr_desc(mr), 0, &a));
	take_back(mem, mr);
	mem = malloc(LEN);
	CHECK(mem);
	fill(mem, LEN, 4);
	for (int i = 0; i < sent; i++) {
		OK(fi_recv(b.ep, b.mem, 20000, fi_mr_desc(b.mr), 0, &b));
		got = polled(&b, &a);
		CHECK(got.len == 20000 && !memcmp(b.mem, mem + i, 20000));
	}
	OK(fi_recv(b.ep, b.mem, LEN, fi_mr_desc(b.mr), 0, &b));
	got = polled(&b, &a);
	CHECK(got.len == LEN && !memcmp(b.mem, mem, LEN));
	for (int i = 0; i <= sent; i++)
		polled(&a, &b);
	free(mem);

	/* A receive that has got a part of its message: the ring has space for the first part. */
	piece = lend(&part);
	OK(fi_send(a.ep, a.mem, 30000, fi_mr_desc(a.mr), 0, &a));
	OK(fi_send(a.ep, a.mem, 12000, fi_mr_desc(a.mr), 0, &a));
	OK(fi_send(a.ep, a.mem, 30000, fi_mr_desc(a.mr), 0, &a));
	for (int i = 0; i < 2; i++)
		OK(fi_recv(b.ep, b.mem, 30000, fi_mr_desc(b.mr), 0, &b));
	OK(fi_recv(b.ep, piece, 30000, fi_mr_desc(part), 0, piece));
	GIVES(1, fi_cq_read(b.cq, &got, 1));
	GIVES(1, fi_cq_read(b.cq, &got, 1));
	GIVES(-FI_EAGAIN, fi_cq_read(b.cq, &got, 1));
	CHECK(piece[16000] == a.mem[16000] && piece[29999] != a.mem[29999]);
	GIVES(-FI_ENOENT, fi_cancel(&b.ep->fid, piece));
	take_back(piece, part);
	for (int i = 0; i < 3; i++)
		completion(a.cq, &a, FI_SEND);
	CHECK(failure(b.cq, piece).err == FI_ECANCELED);
	OK(fi_recv(b.ep, b.mem, 8, fi_mr_desc(b.mr), 0, &b));
	OK(fi_inject(a.ep, a.mem, 8, 0));
	completion(b.cq, &b, FI_RECV);
	unpair(&a, &b);
}

/* A region is closed while a message is longer than the ring and its receive uses the region. After the
 * close no byte of the memory changes. */
static void rings_closed_long(void)
{
	static uint8_t before[LEN];
	struct fid_mr *mr;
	struct end a, b;
	uint8_t *mem, *view;
	int fd = memfd_create("closed", 0);

	if (!rings)
		return;
	CHECK(fd >= 0 && !ftruncate(fd, LEN));
	mem = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	view = mmap(NULL, LEN, PROT_READ, MAP_SHARED, fd, 0);
	CHECK(mem != MAP_FAILED && view != MAP_FAILED);
	pair(&a, &b);
	fill(a.mem, LEN, 6);
	OK(fi_mr_reg(domain, mem, LEN, RIGHTS, 0, 0, 0, &mr, NULL));
	OK(fi_send(a.ep, a.mem, LEN, fi_mr_desc(a.mr), 0, &a));
	OK(fi_recv(b.ep, mem, LEN, fi_mr_desc(mr), 0, mem));
	GIVES(-FI_EAGAIN, fi_cq_read(b.cq, NULL, 0));
	take_back(mem, mr);
	memcpy(before, view, LEN);
	for (int i = 0; i < 20; i++) {
		GIVES(-FI_EAGAIN, fi_cq_read(a.cq, NULL, 0));
		GIVES(-FI_EAGAIN, fi_cq_read(b.cq, NULL, 0));
	}
	CHECK(failure(b.cq, mem).err == FI_ECANCELED);
	completion(a.cq, &a, FI_SEND);
	CHECK(!memcmp(before, view, LEN));
	OK(fi_recv(b.ep, b.mem, 8, fi_mr_desc(b.mr), 0, &b));
	OK(fi_inject(a.ep, a.mem, 8, 0));
	completion(b.cq, &b, FI_RECV);
	unpair(&a, &b);
	OK(munmap(view, LEN));
	OK(close(fd));
}

/* The close of a sub-region leaves a receive, whose memory is the base's. The close of the base cancels
 * the receive. */
static void rings_closed_part(void)
{
	struct fid_mr *base, *part;
	struct end a, b;
	uint8_t *mem;

	if (!rings)
		return;
	mem = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(mem != MAP_FAILED);
	pair(&a, &b);
	fill(a.mem, LEN, 7);
	OK(reg_part(mem, LEN, RIGHTS, NULL, 1, 0, &base));
	OK(reg_part(mem + 4096, 4096, FI_REMOTE_READ, base, 0, 0, &part));
	OK(fi_recv(b.ep, mem + 4096, 64, fi_mr_desc(part), 0, mem));
	OK(fi_recv(b.ep, mem + 8000, 64, fi_mr_desc(part), 0, mem + 1));
	OK(fi_close(&part->fid));
	OK(fi_inject(a.ep, a.mem, 64, 0));
	completion(b.cq, mem, FI_RECV);
	CHECK(!memcmp(mem + 4096, a.mem, 64));
	take_back(mem, base);
	CHECK(failure(b.cq, mem + 1).err == FI_ECANCELED);
	unpair(&a, &b);
}

/* Canceled receives complete with FI_ECANCELED, once each; the others get the messages. */
static void rings_cancel(void)
{
	struct end a, b;

	if (!rings)
		return;
	pair(&a, &b);
	for (int i = 0; i < 4; i++)
		OK(fi_recv(b.ep, b.mem, 64, fi_mr_desc(b.mr), 0, b.mem + i));
	OK(fi_cancel(&b.ep->fid, b.mem));
	OK(fi_cancel(&b.ep->fid, b.mem + 2));
	GIVES(-FI_ENOENT, fi_cancel(&b.ep->fid, b.mem + 2));
	GIVES(-FI_ENOENT, fi_cancel(&b.ep->fid, b.mem + 4));
	CHECK(failure(b.cq, b.mem).err == FI_ECANCELED);
	CHECK(failure(b.cq, b.mem + 2).err == FI_ECANCELED);
	for (int i = 0; i < 2; i++)
		OK(fi_inject(a.ep, a.mem, 8, 0));
	completion(b.cq, b.mem + 1, FI_RECV);
	completion(b.cq, b.mem + 3, FI_RECV);
	GIVES(-FI_ENOENT, fi_cancel(&b.ep->fid, b.mem + 1));
	GIVES(-FI_EAGAIN, fi_cq_read(b.cq, NULL, 1));
	unpair(&a, &b);
}

/* A thread that owns both ends and reads no queue posts until its operation is accepted. */
static void rings_turn(void)
{
	struct end a, b;
	uint64_t key, at;
	int tries = 0;
	ssize_t rc;

	pair(&a, &b);
	key = fi_mr_key(b.mr);
	at = (uint64_t)(uintptr_t)b.mem;
	for (int i = 0; i < 4; i++)
		OK(fi_recv(b.ep, b.mem, LEN, fi_mr_desc(b.mr), 0, &b));
	for (int i = 0; i < 4; i++)
		OK(fi_send(a.ep, a.mem, LEN, fi_mr_desc(a.mr), 0, &a));
	while ((rc = fi_write(a.ep, a.mem, 1, fi_mr_desc(a.mr), 0, at, key, &b)) == -FI_EAGAIN)
		CHECK(++tries < 100);
	OK(rc);
	for (int i = 0; i < 4; i++) {
		CHECK(polled(&b, &a).len == LEN);
		CHECK(polled(&a, &b).op_context == &a);
	}
	CHECK(polled(&a, &b).op_context == &b);
	unpair(&a, &b);
}

/* Messages of all lengths keep their order among themselves, and after writes. */
static void rings_order(void)
{
	static size_t lens[] = { 8, LEN, 0, 16384, 16385, LEN / 2, LEN / 2 + 1, 100, LEN, LEN };
	enum { N = sizeof(lens) / sizeof(lens[0]) };
	struct end a, b;
	uint64_t key, at;

	pair(&a, &b);
	key = fi_mr_key(b.mr);
	at = (uint64_t)(uintptr_t)b.mem;
	fill(a.mem, LEN, 5);
	for (uint64_t round = 0; round < 3; round++) {
		uint64_t flags = round == 1 ? FI_DELIVERY_COMPLETE : 0;
		struct fi_cq_data_entry got;

		for (uint64_t i = 0; i < N; i++) {
			struct iovec iov = { a.mem, lens[i] };
			void *desc = fi_mr_desc(a.mr);
			struct fi_msg msg = { .msg_iov = &iov, .desc = &desc, .iov_count = 1,
					      .context = &lens[i], .data = i };

			OK(fi_sendmsg(a.ep, &msg, FI_COMPLETION | FI_REMOTE_CQ_DATA | flags));
		}
		for (uint64_t i = 0; i < N; i++) {
			memset(b.mem, 0, LEN);
			OK(fi_recv(b.ep, b.mem, LEN, fi_mr_desc(b.mr), 0, &b));
			got = polled(&b, &a);
			CHECK(got.len == lens[i] && got.data == i && got.flags & FI_RECV);
			CHECK(!memcmp(a.mem, b.mem, lens[i]));
		}
		for (uint64_t i = 0; i < N; i++)
			CHECK(polled(&a, &b).op_context == &lens[i]);
	}
	for (int i = 0; i < 50; i++) {
		size_t len = i & 1 ? LEN : 8;
		ssize_t rc;

		OK(fi_recv(b.ep, b.mem + 4096, LEN - 4096, fi_mr_desc(b.mr), 0, &b));
		OK(fi_recv(b.ep, b.mem + 4096, LEN - 4096, fi_mr_desc(b.mr), 0, &b));
		a.mem[0] = (uint8_t)i;
		OK(fi_send(a.ep, a.mem, len - (i & 1 ? 4096 : 0), fi_mr_desc(a.mr), 0, &a));
		while ((rc = fi_write(a.ep, a.mem, 1, fi_mr_desc(a.mr), 0, at, key, &a)) ==
		       -FI_EAGAIN) {
			fi_cq_read(a.cq, NULL, 0);
			fi_cq_read(b.cq, NULL, 0);
		}
		OK(rc);
		OK(fi_inject(a.ep, a.mem, 8, 0));
		polled(&b, &a);
		polled(&b, &a);
		CHECK(b.mem[0] == i);
		polled(&a, &b);
		polled(&a, &b);
	}
	unpair(&a, &b);
}

struct sleeper {
	struct end *e;
	int n;
};

static void *receive_thread(void *arg)
{
	struct sleeper *s = arg;

	for (int i = 0; i < s->n; i++) {
		OK(fi_recv(s->e->ep, s->e->mem, LEN, fi_mr_desc(s->e->mr), 0, s->e));
		completion(s->e->cq, s->e, FI_RECV);
	}
	return NULL;
}

/* Ends in two threads, which sleep in fi_cq_sread: short and long messages wake them. */
static void rings_sleepers(void)
{
	struct sleeper s;
	struct end a, b;
	pthread_t thread;

	pair(&a, &b);
	s = (struct sleeper){ .e = &b, .n = 200 };
	OK(pthread_create(&thread, NULL, receive_thread, &s));
	for (int i = 0; i < s.n; i++) {
		size_t len = i % 3 == 0 ? LEN : i % 3 == 1 ? 20000 : 8;

		OK(fi_send(a.ep, a.mem, len, fi_mr_desc(a.mr), 0, &a));
		completion(a.cq, &a, FI_SEND);
		if (i % 16 == 0)
			usleep(2000);
	}
	OK(pthread_join(thread, NULL));
	unpair(&a, &b);
}

/* A send completes when the peer gets the message, even if the sender closes at once: the ring is
 * the peer's as well. */
static void rings_transmit_complete(void)
{
	struct end a, b;
	struct iovec iov;
	void *desc;
	struct fi_msg msg = { .msg_iov = &iov, .desc = &desc, .iov_count = 1 };

	pair(&a, &b);
	fill(a.mem, LEN, 5);
	iov = (struct iovec){ a.mem, 5000 };
	desc = fi_mr_desc(a.mr);
	msg.context = &a;
	OK(fi_sendmsg(a.ep, &msg, FI_TRANSMIT_COMPLETE | FI_COMPLETION));
	completion(a.cq, &a, FI_SEND);
	OK(fi_close(&a.ep->fid));
	a.ep = NULL;
	OK(fi_recv(b.ep, b.mem, LEN, fi_mr_desc(b.mr), 0, &b));
	CHECK(completion(b.cq, &b, FI_RECV).len == 5000);
	CHECK(!memcmp(a.mem, b.mem, 5000));
	unpair(&a, &b);
}
