// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A raw verbs peer that executes the commands of the wire fuzzer (src/wire.rs),
 * senseless ones too.
 *
 *   verbs_peer
 *
 * Reads one command a line and answers each with one line, "ok ..." or
 * "err ERRNO". S is a slot, 0 to SLOTS - 1; HEX is "-" for no bytes.
 *
 *   resolve S ADDRESS PORT      an identifier with a route
 *   qp S                        a queue pair for the identifier: ok NUMBER
 *   connect S PARAM HEX         sends a request; PARAM is seven numbers, see param()
 *   listen S ADDRESS [PORT]     listens: ok PORT
 *   take L S MS                 slot S gets the next request of listener L: ok HEX
 *   accept S PARAM HEX          accepts the request
 *   reject S HEX
 *   wait S MS                   the next event: ok KIND STATUS HEX, or ok none
 *   rts S                       the queue pair to RTS: ok THEIR-NUMBER RQ-PSN SQ-PSN
 *   establish S                 sends "ready to use"
 *   disconnect S
 *   error S                     the queue pair to ERR
 *   delqp S                     destroys the queue pair
 *   del S                       destroys everything of the slot
 *   clear                       the same with every slot
 *   recv S LEN [AT]             posts a receive, into the memory from byte AT on
 *   post S OP LEN ADDR KEY A B  posts an operation; OP is an enum ibv_wr_opcode
 *   poll S N MS                 waits for N completions: ok STATUS:OPCODE:ID ...
 *   mem                         its memory: ok ADDR KEY LEN (a slot must be resolved)
 *   put HEX                     sets the first bytes of the memory
 *   fill BYTE                   sets every byte of the memory
 *   find HEX                    counts these bytes in the memory: ok COUNT
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#define SLOTS 64
#define MEM (1 << 20)
#define DEPTH 128
#define SGES 4

struct slot {
	struct rdma_event_channel *ch;
	struct rdma_cm_id *id;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
};

static struct slot slots[SLOTS];
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static uint8_t *mem;

static int unhex(const char *text, uint8_t *out, int room)
{
	int n = 0;

	if (!text || !strcmp(text, "-"))
		return 0;
	for (; text[0] && text[1] && n < room; text += 2) {
		unsigned int byte;

		if (sscanf(text, "%2x", &byte) != 1)
			break;
		out[n++] = (uint8_t)byte;
	}
	return n;
}

static void hex(char *out, const uint8_t *data, int len)
{
	if (!data || len <= 0) {
		strcpy(out, "-");
		return;
	}
	for (int i = 0; i < len; i++)
		sprintf(out + 2 * i, "%02x", data[i]);
}

static void answer(int ret)
{
	if (ret)
		printf("err %d\n", errno ? errno : -ret);
	else
		printf("ok\n");
}

static long num(char **at)
{
	char *word = strsep(at, " ");

	return word ? (long)strtoull(word, NULL, 0) : 0;
}

static char *word(char **at)
{
	char *w = strsep(at, " ");

	return w ? w : "-";
}

static struct slot *slot(char **at)
{
	return &slots[(unsigned long)num(at) % SLOTS];
}

/* Allocates the protection domain and the memory, on the first device. */
static int prepare(struct ibv_context *ctx)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
		     IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

	if (pd)
		return 0;
	mem = mmap(NULL, MEM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pd = ibv_alloc_pd(ctx);
	mr = pd && mem != MAP_FAILED ? ibv_reg_mr(pd, mem, MEM, access) : NULL;
	return mr ? 0 : -1;
}

/* Waits for an event of a kind. Returns -1 if another comes, or none. */
static int expect(struct slot *s, enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event;
	int got;

	if (rdma_get_cm_event(s->ch, &event))
		return -1;
	got = event->event;
	rdma_ack_cm_event(event);
	errno = EHOSTUNREACH;
	return got == (int)kind ? 0 : -1;
}

static void drop_qp(struct slot *s)
{
	if (s->qp)
		ibv_destroy_qp(s->qp);
	if (s->cq)
		ibv_destroy_cq(s->cq);
	s->qp = NULL;
	s->cq = NULL;
}

static void drop(struct slot *s)
{
	drop_qp(s);
	if (s->id)
		rdma_destroy_id(s->id);
	if (s->ch)
		rdma_destroy_event_channel(s->ch);
	memset(s, 0, sizeof(*s));
}

static int address(char **at, struct sockaddr_in *to)
{
	memset(to, 0, sizeof(*to));
	to->sin_family = AF_INET;
	return inet_pton(AF_INET, word(at), &to->sin_addr) == 1 ? 0 : -1;
}

static int new_id(struct slot *s)
{
	drop(s);
	s->ch = rdma_create_event_channel();
	return s->ch ? rdma_create_id(s->ch, &s->id, NULL, RDMA_PS_TCP) : -1;
}

static int resolve(struct slot *s, char **at)
{
	struct sockaddr_in to;

	if (new_id(s) || address(at, &to))
		return -1;
	to.sin_port = htons((uint16_t)num(at));
	if (rdma_resolve_addr(s->id, NULL, (struct sockaddr *)&to, 4000) ||
	    expect(s, RDMA_CM_EVENT_ADDR_RESOLVED) ||
	    rdma_resolve_route(s->id, 4000) ||
	    expect(s, RDMA_CM_EVENT_ROUTE_RESOLVED))
		return -1;
	return prepare(s->id->verbs);
}

static int make_qp(struct slot *s)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH,
			 .max_send_sge = SGES, .max_recv_sge = 1 },
	};

	if (!s->id || s->qp || prepare(s->id->verbs))
		return -1;
	s->cq = ibv_create_cq(s->id->verbs, 2 * DEPTH + 8, NULL, NULL, 0);
	if (!s->cq)
		return -1;
	attr.send_cq = attr.recv_cq = s->cq;
	s->qp = ibv_create_qp(pd, &attr);
	if (!s->qp)
		drop_qp(s);
	return s->qp ? 0 : -1;
}

/* RESPONDER-RESOURCES INITIATOR-DEPTH FLOW RETRY RNR SRQ QPN (-1: its own) HEX */
static void param(struct slot *s, char **at, struct rdma_conn_param *p, uint8_t *data)
{
	long qpn;

	memset(p, 0, sizeof(*p));
	p->responder_resources = (uint8_t)num(at);
	p->initiator_depth = (uint8_t)num(at);
	p->flow_control = (uint8_t)num(at);
	p->retry_count = (uint8_t)num(at);
	p->rnr_retry_count = (uint8_t)num(at);
	p->srq = (uint8_t)num(at);
	qpn = num(at);
	p->qp_num = qpn >= 0 ? (uint32_t)qpn : s->qp ? s->qp->qp_num : 0;
	p->private_data = data;
	p->private_data_len = (uint8_t)unhex(word(at), data, 255);
}

static int readable(struct slot *s, int ms)
{
	struct pollfd fd = { .fd = s->ch->fd, .events = POLLIN };

	return poll(&fd, 1, ms) == 1;
}

static void wait_event(struct slot *s, int ms)
{
	struct rdma_cm_event *event;
	char text[520];

	if (!s->ch || !readable(s, ms)) {
		printf("ok none\n");
		return;
	}
	if (rdma_get_cm_event(s->ch, &event)) {
		answer(-1);
		return;
	}
	hex(text, event->param.conn.private_data, event->param.conn.private_data_len);
	printf("ok %s %d %s\n", rdma_event_str(event->event) + strlen("RDMA_CM_EVENT_"),
	       event->status, text);
	rdma_ack_cm_event(event);
}

static void take(struct slot *l, struct slot *s, int ms)
{
	struct rdma_cm_event *event;
	char text[520];

	drop(s);
	if (!l->ch || !readable(l, ms) || rdma_get_cm_event(l->ch, &event)) {
		printf("err %d\n", ETIMEDOUT);
		return;
	}
	if (event->event != RDMA_CM_EVENT_CONNECT_REQUEST) {
		rdma_ack_cm_event(event);
		printf("err %d\n", EPROTO);
		return;
	}
	hex(text, event->param.conn.private_data, event->param.conn.private_data_len);
	s->id = event->id;
	rdma_ack_cm_event(event);
	s->ch = rdma_create_event_channel();
	if (!s->ch || rdma_migrate_id(s->id, s->ch))
		answer(-1);
	else
		printf("ok %s\n", text);
}

static int to_state(struct slot *s, enum ibv_qp_state state, struct ibv_qp_attr *attr)
{
	int mask;

	memset(attr, 0, sizeof(*attr));
	attr->qp_state = state;
	if (rdma_init_qp_attr(s->id, attr, &mask))
		return -1;
	return ibv_modify_qp(s->qp, attr, mask);
}

static void rts(struct slot *s)
{
	struct ibv_qp_attr init, rtr, rts;

	errno = EINVAL;
	if (!s->id || !s->qp || to_state(s, IBV_QPS_INIT, &init) ||
	    to_state(s, IBV_QPS_RTR, &rtr) || to_state(s, IBV_QPS_RTS, &rts))
		answer(-1);
	else
		printf("ok %u %u %u\n", rtr.dest_qp_num, rtr.rq_psn, rts.sq_psn);
}

static int post(struct slot *s, char **at)
{
	struct ibv_send_wr wr = { .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_sge sges[SGES];
	uint64_t len, addr, a, b;
	uint32_t key;

	wr.opcode = (enum ibv_wr_opcode)num(at);
	len = (uint64_t)num(at);
	addr = (uint64_t)num(at);
	key = (uint32_t)num(at);
	a = (uint64_t)num(at);
	b = (uint64_t)num(at);
	wr.sg_list = sges;
	while (len && wr.num_sge < SGES) {
		uint32_t part = len > MEM ? MEM : (uint32_t)len;

		sges[wr.num_sge++] = (struct ibv_sge){ (uintptr_t)mem, part, mr->lkey };
		len -= part;
	}
	wr.wr_id = 1;
	switch (wr.opcode) {
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		wr.wr.atomic.remote_addr = addr;
		wr.wr.atomic.rkey = key;
		wr.wr.atomic.compare_add = a;
		wr.wr.atomic.swap = b;
		break;
	case IBV_WR_SEND_WITH_INV:
		wr.invalidate_rkey = key;
		break;
	case IBV_WR_SEND_WITH_IMM:
		wr.imm_data = (uint32_t)a;
		break;
	default:
		wr.imm_data = (uint32_t)a;
		wr.wr.rdma.remote_addr = addr;
		wr.wr.rdma.rkey = key;
	}
	return ibv_post_send(s->qp, &wr, &bad);
}

static int receive(struct slot *s, long len, long at)
{
	struct ibv_sge sge = { (uintptr_t)mem + at, len > MEM ? MEM : (uint32_t)len, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1 }, *bad;

	return ibv_post_recv(s->qp, &wr, &bad);
}

static void poll_cq(struct slot *s, int want, int ms)
{
	struct timespec nap = { 0, 1000000 };
	struct ibv_wc wc;

	printf("ok");
	while (s->cq && want > 0) {
		int n = ibv_poll_cq(s->cq, 1, &wc);

		if (n > 0) {
			printf(" %d:%d:%d", wc.status, wc.opcode, (int)wc.wr_id);
			want--;
		} else if (n < 0 || ms-- <= 0) {
			break;
		} else {
			nanosleep(&nap, NULL);
		}
	}
	printf("\n");
}

static int listen_on(struct slot *s, char **at)
{
	struct sockaddr_in on;

	if (new_id(s) || address(at, &on))
		return -1;
	on.sin_port = htons((uint16_t)num(at));
	return rdma_bind_addr(s->id, (struct sockaddr *)&on) || rdma_listen(s->id, 64) ? -1 : 0;
}

static void find(char **at)
{
	uint8_t what[64];
	int n = unhex(word(at), what, sizeof(what));
	uint8_t *p = mem;
	long count = 0;

	while (n && mem && (p = memmem(p, (size_t)(mem + MEM - p), what, (size_t)n))) {
		count++;
		p++;
	}
	printf("ok %ld\n", count);
}

static void act(char *cmd, char *at)
{
	struct rdma_conn_param p;
	uint8_t data[256];
	struct slot *s;

	errno = 0;
	if (!strcmp(cmd, "mem")) {
		if (mr)
			printf("ok %llu %u %d\n", (unsigned long long)(uintptr_t)mem, mr->rkey, MEM);
		else
			printf("err %d\n", ENODEV);
		return;
	}
	if (!strcmp(cmd, "clear")) {
		for (int i = 0; i < SLOTS; i++)
			drop(&slots[i]);
		answer(0);
		return;
	}
	if (!strcmp(cmd, "find")) {
		find(&at);
		return;
	}
	if (!strcmp(cmd, "fill")) {
		if (mem)
			memset(mem, (int)num(&at), MEM);
		answer(0);
		return;
	}
	if (!strcmp(cmd, "put")) {
		if (mem)
			unhex(word(&at), mem, MEM);
		answer(0);
		return;
	}
	s = slot(&at);
	if (!strcmp(cmd, "resolve")) {
		answer(resolve(s, &at));
	} else if (!strcmp(cmd, "listen")) {
		int ret = listen_on(s, &at);

		if (ret)
			answer(ret);
		else
			printf("ok %d\n", ntohs(rdma_get_src_port(s->id)));
	} else if (!strcmp(cmd, "take")) {
		struct slot *to = slot(&at);

		take(s, to, (int)num(&at));
	} else if (!strcmp(cmd, "del")) {
		drop(s);
		answer(0);
	} else if (!strcmp(cmd, "wait")) {
		wait_event(s, (int)num(&at));
	} else if (!strcmp(cmd, "poll")) {
		int want = (int)num(&at);

		poll_cq(s, want, (int)num(&at));
	} else if (!s->id) {
		printf("err %d\n", ENOTCONN);
	} else if (!strcmp(cmd, "qp")) {
		int ret = make_qp(s);

		if (ret)
			answer(ret);
		else
			printf("ok %u\n", s->qp->qp_num);
	} else if (!strcmp(cmd, "connect")) {
		param(s, &at, &p, data);
		answer(rdma_connect(s->id, &p));
	} else if (!strcmp(cmd, "accept")) {
		param(s, &at, &p, data);
		answer(rdma_accept(s->id, &p));
	} else if (!strcmp(cmd, "reject")) {
		int n = unhex(word(&at), data, 255);

		answer(rdma_reject(s->id, data, (uint8_t)n));
	} else if (!strcmp(cmd, "establish")) {
		answer(rdma_establish(s->id));
	} else if (!strcmp(cmd, "disconnect")) {
		answer(rdma_disconnect(s->id));
	} else if (!s->qp) {
		printf("err %d\n", EBADFD);
	} else if (!strcmp(cmd, "rts")) {
		rts(s);
	} else if (!strcmp(cmd, "error")) {
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

		answer(ibv_modify_qp(s->qp, &attr, IBV_QP_STATE));
	} else if (!strcmp(cmd, "delqp")) {
		drop_qp(s);
		answer(0);
	} else if (!strcmp(cmd, "recv")) {
		long len = num(&at);

		answer(receive(s, len, num(&at)));
	} else if (!strcmp(cmd, "post")) {
		answer(post(s, &at));
	} else {
		printf("err %d\n", ENOSYS);
	}
}

int main(void)
{
	static char line[4096];

	/* The fuzzer has exited, or is about to. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	setvbuf(stdout, NULL, _IOLBF, 0);
	while (fgets(line, sizeof(line), stdin)) {
		char *at = line, *cmd;

		line[strcspn(line, "\n")] = 0;
		cmd = strsep(&at, " ");
		act(cmd, at);
		fflush(stdout);
	}
	return 0;
}
