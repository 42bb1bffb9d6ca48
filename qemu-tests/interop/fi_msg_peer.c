// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A peer made of libfabric's user-space verbs provider (FI_EP_MSG), to which a
 * kfabric endpoint must be able to talk.
 *
 *   fi_msg_peer connect ADDRESS PORT
 *   fi_msg_peer listen ADDRESS PORT
 *
 * Either way the peer then takes the same steps, in lockstep with the kfabric side
 * (tests/interop.rs):
 *
 *   1. application data both ways while connecting;
 *   2. takes a message of MSG bytes, pattern 1, and answers with pattern 2;
 *   3. takes a message with a kfabric key (address, key: two little-endian
 *      u64); reads LEN bytes there, which must be pattern 3; writes LEN bytes
 *      of pattern 4 behind them; says "written";
 *   4. sends the address and key of memory of its own, LEN bytes of pattern 5
 *      and LEN bytes of space; waits for a message; the space must hold pattern 6;
 *   5. sends a message with completion data; says goodbye.
 *
 * Byte i of pattern p is (i * 7 + p * 31) & 0xff. Exit status 0: every step succeeded.
 */
#include <arpa/inet.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MSG 5000
#define LEN 100000
#define LIMIT_MS 30000

static const char ASK[] = "verbs asks";
static const char ANSWER[] = "verbs answers";
static const char KASK[] = "kfabric asks";
static const char KANSWER[] = "kfabric answers";

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_eq *eq;
static struct fid_cq *cq;
static struct fid_ep *ep;
static struct fid_pep *pep;
static struct fid_mr *mr;
static uint8_t *mem;

static void die(const char *what, long ret)
{
	fprintf(stderr, "fi_msg_peer: %s: %ld (%s)\n", what, ret,
		ret < 0 ? fi_strerror((int)-ret) : "unexpected");
	exit(1);
}

static void must(const char *what, long ret)
{
	if (ret)
		die(what, ret);
}

static void fill(uint8_t *at, size_t len, int pattern)
{
	for (size_t i = 0; i < len; i++)
		at[i] = (uint8_t)(i * 7 + (size_t)pattern * 31);
}

static void check(const char *what, const uint8_t *at, size_t len, int pattern)
{
	for (size_t i = 0; i < len; i++)
		if (at[i] != (uint8_t)(i * 7 + (size_t)pattern * 31)) {
			fprintf(stderr, "fi_msg_peer: %s: byte %zu is %u\n", what, i, at[i]);
			exit(1);
		}
}

/* Waits for an event, whose data must be `data`. */
static struct fi_info *event(uint32_t wanted, const char *data)
{
	char buf[sizeof(struct fi_eq_cm_entry) + 512];
	struct fi_eq_cm_entry *entry = (void *)buf;
	uint32_t kind;
	ssize_t n = fi_eq_sread(eq, &kind, buf, sizeof(buf), LIMIT_MS, 0);

	if (n == -FI_EAVAIL) {
		struct fi_eq_err_entry err = { 0 };

		fi_eq_readerr(eq, &err, 0);
		die("an error event", -err.err);
	}
	if (n < (ssize_t)sizeof(*entry))
		die("waiting for an event", n);
	if (kind != wanted)
		die("the event's kind", kind);
	n -= (ssize_t)sizeof(*entry);
	if (data && ((size_t)n < strlen(data) || memcmp(entry->data, data, strlen(data)))) {
		fprintf(stderr, "fi_msg_peer: %zd bytes came, not \"%s\"\n", n, data);
		exit(1);
	}
	return entry->info;
}

/* Waits for a completion with these flags. */
static struct fi_cq_data_entry completion(const char *what, uint64_t flags)
{
	struct fi_cq_data_entry entry;
	ssize_t n = fi_cq_sread(cq, &entry, 1, NULL, LIMIT_MS);

	if (n == -FI_EAVAIL) {
		struct fi_cq_err_entry err = { 0 };

		fi_cq_readerr(cq, &err, 0);
		fprintf(stderr, "fi_msg_peer: provider's errno %d\n", err.prov_errno);
		die(what, -err.err);
	}
	if (n != 1)
		die(what, n);
	if ((entry.flags & flags) != flags) {
		fprintf(stderr, "fi_msg_peer: %s: flags %#llx\n", what,
			(unsigned long long)entry.flags);
		exit(1);
	}
	return entry;
}

static struct fi_info *hints(void)
{
	struct fi_info *h = fi_allocinfo();

	if (!h)
		die("fi_allocinfo", 0);
	h->ep_attr->type = FI_EP_MSG;
	h->caps = FI_MSG | FI_RMA;
	h->addr_format = FI_SOCKADDR_IN;
	h->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	h->fabric_attr->prov_name = strdup("verbs");
	return h;
}

/* Opens domain, queue and memory for `info`, and an endpoint with a first receive. */
static void open_endpoint(void)
{
	struct fi_cq_attr attr = { .format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_UNSPEC };

	must("fi_domain", fi_domain(fabric, info, &domain, NULL));
	must("fi_cq_open", fi_cq_open(domain, &attr, &cq, NULL));
	mem = calloc(1, 4 * LEN);
	if (!mem)
		die("memory", 0);
	must("fi_mr_reg", fi_mr_reg(domain, mem, 4 * LEN,
				    FI_SEND | FI_RECV | FI_READ | FI_WRITE |
				    FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0, &mr, NULL));
	must("fi_endpoint", fi_endpoint(domain, info, &ep, NULL));
	must("fi_ep_bind eq", fi_ep_bind(ep, &eq->fid, 0));
	must("fi_ep_bind cq", fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	must("fi_enable", fi_enable(ep));
}

static void receive(uint8_t *at, size_t len)
{
	must("fi_recv", fi_recv(ep, at, len, fi_mr_desc(mr), 0, NULL));
}

static void send_and_wait(const uint8_t *at, size_t len)
{
	must("fi_send", fi_send(ep, at, len, fi_mr_desc(mr), 0, NULL));
	completion("a send", FI_SEND);
}

static void talk(void)
{
	uint8_t *room = mem + 3 * LEN;
	uint64_t remote[2];

	completion("the first message", FI_RECV);
	check("the first message", room, MSG, 1);
	receive(room, MSG);
	fill(mem, MSG, 2);
	send_and_wait(mem, MSG);

	completion("the key", FI_RECV);
	memcpy(remote, room, sizeof(remote));
	receive(room, MSG);
	must("fi_read", fi_read(ep, mem, LEN, fi_mr_desc(mr), 0, remote[0], remote[1], NULL));
	completion("a read", FI_READ);
	check("what was read", mem, LEN, 3);
	fill(mem, LEN, 4);
	must("fi_write", fi_write(ep, mem, LEN, fi_mr_desc(mr), 0, remote[0] + LEN, remote[1], NULL));
	completion("a write", FI_WRITE);
	memcpy(mem, "written", 7);
	send_and_wait(mem, 7);

	fill(mem, LEN, 5);
	memset(mem + LEN, 0, LEN);
	remote[0] = (uint64_t)(uintptr_t)mem;
	remote[1] = fi_mr_key(mr);
	memcpy(mem + 2 * LEN, remote, sizeof(remote));
	send_and_wait(mem + 2 * LEN, sizeof(remote));
	completion("word that it is written", FI_RECV);
	check("what was written", mem + LEN, LEN, 6);

	must("fi_senddata", fi_senddata(ep, mem, 64, fi_mr_desc(mr), 0xfeed, 0, NULL));
	completion("a send with data", FI_SEND);

	/* The other side disconnects on this word, and may do so before it is acknowledged. */
	must("fi_send", fi_send(ep, mem, 1, fi_mr_desc(mr), 0, NULL));
}

static void do_connect(const char *address, const char *port)
{
	struct fi_eq_attr attr = { .wait_obj = FI_WAIT_UNSPEC };

	must("fi_getinfo", fi_getinfo(FI_VERSION(1, 18), address, port, 0, hints(), &info));
	must("fi_fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
	must("fi_eq_open", fi_eq_open(fabric, &attr, &eq, NULL));
	open_endpoint();
	receive(mem + 3 * LEN, MSG);
	must("fi_connect", fi_connect(ep, info->dest_addr, ASK, sizeof(ASK) - 1));
	event(FI_CONNECTED, KANSWER);
}

static void do_listen(const char *address, const char *port)
{
	struct fi_eq_attr attr = { .wait_obj = FI_WAIT_UNSPEC };

	must("fi_getinfo", fi_getinfo(FI_VERSION(1, 18), address, port, FI_SOURCE, hints(), &info));
	must("fi_fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
	must("fi_eq_open", fi_eq_open(fabric, &attr, &eq, NULL));
	must("fi_passive_ep", fi_passive_ep(fabric, info, &pep, NULL));
	must("fi_pep_bind", fi_pep_bind(pep, &eq->fid, 0));
	must("fi_listen", fi_listen(pep));
	puts("listening");
	fflush(stdout);
	info = event(FI_CONNREQ, KASK);
	open_endpoint();
	receive(mem + 3 * LEN, MSG);
	must("fi_accept", fi_accept(ep, ANSWER, sizeof(ANSWER) - 1));
	event(FI_CONNECTED, NULL);
}

int main(int argc, char **argv)
{
	if (argc != 4) {
		fprintf(stderr, "usage: fi_msg_peer connect|listen ADDRESS PORT\n");
		return 2;
	}
	if (!strcmp(argv[1], "connect"))
		do_connect(argv[2], argv[3]);
	else
		do_listen(argv[2], argv[3]);
	talk();
	/* The other side closes the connection, or has done so. */
	event(FI_SHUTDOWN, NULL);
	fi_close(&ep->fid);
	fi_close(&mr->fid);
	puts("all was so");
	return 0;
}
