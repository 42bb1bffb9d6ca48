// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * One-sided reads and writes by libfabric: a server exports memory, a client writes and reads it.
 *
 *   kfi-example-libfabric -l ADDRESS PORT      the server
 *   kfi-example-libfabric ADDRESS PORT TEXT    the client, which prints the text
 *
 * The server ends when the client does, and prints the memory.
 */
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

/* The server's memory, as its answer to the connection request names it. */
struct export {
	uint64_t addr;
	uint64_t key;
};

static char memory[4096];
static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_eq *eq;
static struct fid_cq *cq;
static struct fid_ep *ep;
static struct fid_mr *mr;

static void check(long ret, const char *what)
{
	if (ret >= 0)
		return;
	fprintf(stderr, "kfi-example-libfabric: %s: %s\n", what, fi_strerror((int)-ret));
	exit(1);
}

/* Waits for an event of connections. Stores the peer's data in @data. */
static struct fi_info *expect(uint32_t wanted, void *data, size_t len)
{
	union {
		struct fi_eq_cm_entry entry;
		char room[sizeof(struct fi_eq_cm_entry) + 256];
	} got;
	struct fi_eq_err_entry error = { 0 };
	uint32_t event;
	long ret = fi_eq_sread(eq, &event, &got, sizeof(got), -1, 0);

	if (ret == -FI_EAVAIL && fi_eq_readerr(eq, &error, 0) > 0)
		ret = -error.err;
	check(ret, "waiting for the peer");
	if (event != wanted) {
		fprintf(stderr, "kfi-example-libfabric: event %u, not %u\n", event, wanted);
		exit(1);
	}
	if (len)
		memcpy(data, got.entry.data, len);
	return got.entry.info;
}

/* Opens an endpoint, and registers the memory with the rights that the peer gets. */
static void open_endpoint(struct fi_info *of, uint64_t rights)
{
	struct fi_cq_attr attr = { .format = FI_CQ_FORMAT_CONTEXT, .wait_obj = FI_WAIT_UNSPEC };

	check(fi_domain(fabric, of, &domain, NULL), "fi_domain");
	check(fi_cq_open(domain, &attr, &cq, NULL), "fi_cq_open");
	check(fi_endpoint(domain, of, &ep, NULL), "fi_endpoint");
	check(fi_ep_bind(ep, &eq->fid, 0), "binding the event queue");
	check(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV), "binding the completion queue");
	check(fi_enable(ep), "fi_enable");
	check(fi_mr_reg(domain, memory, sizeof(memory), FI_READ | FI_WRITE | rights, 0, 0, 0, &mr,
			NULL), "fi_mr_reg");
}

static void serve(void)
{
	struct export export;
	struct fid_pep *pep;
	struct fi_info *request;

	check(fi_passive_ep(fabric, info, &pep, NULL), "fi_passive_ep");
	check(fi_pep_bind(pep, &eq->fid, 0), "fi_pep_bind");
	check(fi_listen(pep), "fi_listen");
	puts("listening");
	fflush(stdout);
	request = expect(FI_CONNREQ, NULL, 0);
	open_endpoint(request, FI_REMOTE_READ | FI_REMOTE_WRITE);
	export.key = fi_mr_key(mr);
	export.addr = info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)memory : 0;
	check(fi_accept(ep, &export, sizeof(export)), "fi_accept");
	expect(FI_CONNECTED, NULL, 0);
	expect(FI_SHUTDOWN, NULL, 0);
	/* After this call no peer can write to the memory. */
	check(fi_close(&mr->fid), "fi_close");
	printf("%s\n", memory);
	fi_freeinfo(request);
	fi_close(&pep->fid);
}

static void completed(void)
{
	struct fi_cq_entry done;
	struct fi_cq_err_entry error = { 0 };
	long ret = fi_cq_sread(cq, &done, 1, NULL, -1);

	if (ret == -FI_EAVAIL && fi_cq_readerr(cq, &error, 0) == 1)
		ret = -error.err;
	check(ret, "the operation");
}

static void use(const char *text)
{
	struct export peer;
	size_t len = strnlen(text, sizeof(memory) - 1) + 1;

	open_endpoint(info, 0);
	check(fi_connect(ep, info->dest_addr, NULL, 0), "fi_connect");
	expect(FI_CONNECTED, &peer, sizeof(peer));
	memcpy(memory, text, len - 1);
	check(fi_write(ep, memory, len, fi_mr_desc(mr), 0, peer.addr, peer.key, NULL), "fi_write");
	completed();
	memset(memory, 0, sizeof(memory));
	check(fi_read(ep, memory, len, fi_mr_desc(mr), 0, peer.addr, peer.key, NULL), "fi_read");
	completed();
	printf("%s\n", memory);
	check(fi_shutdown(ep, 0), "fi_shutdown");
	fi_close(&mr->fid);
}

int main(int argc, char **argv)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_eq_attr attr = { .wait_obj = FI_WAIT_UNSPEC };
	int is_server = argc == 4 && !strcmp(argv[1], "-l");

	if (argc != 4 || !hints) {
		fprintf(stderr, "usage: kfi-example-libfabric -l ADDRESS PORT\n"
			"       kfi-example-libfabric ADDRESS PORT TEXT\n");
		return 2;
	}
	hints->ep_attr->type = FI_EP_MSG;
	hints->caps = FI_MSG | FI_RMA;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	/* Any provider with connections would do. */
	hints->fabric_attr->prov_name = strdup("kfabric");
	check(fi_getinfo(FI_VERSION(1, 18), argv[1 + is_server], argv[2 + is_server],
			 is_server ? FI_SOURCE : 0, hints, &info), "fi_getinfo");
	check(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
	check(fi_eq_open(fabric, &attr, &eq, NULL), "fi_eq_open");
	if (is_server)
		serve();
	else
		use(argv[3]);
	fi_close(&ep->fid);
	fi_close(&cq->fid);
	fi_close(&domain->fid);
	fi_close(&eq->fid);
	fi_close(&fabric->fid);
	fi_freeinfo(info);
	fi_freeinfo(hints);
	return 0;
}
