// SPDX-License-Identifier: MIT OR Apache-2.0
/* Cases of fi_cases.c: what fi_getinfo answers, and endpoints that are opened in other ways. */
/* ---- fi_getinfo ---- */

/* Asks with hints that this function frees. Returns the result, and an answer for success. */
static int ask(struct fi_info *hints, uint32_t version, const char *node, const char *service,
	       uint64_t flags, struct fi_info **found)
{
	int rc = fi_getinfo(version, node, service, flags, hints, found);

	fi_freeinfo(hints);
	return rc;
}

/* The answer to hints that `set` has changed: each info is passed to `check`. */
#define ANSWER(version, node, service, flags, set, check) do { \
	struct fi_info *h = hints_of(info->domain_attr->name), *found = NULL; \
	set; \
	OK(ask(h, version, node, service, flags, &found)); \
	for (struct fi_info *i = found; i; i = i->next) \
		CHECK(check); \
	fi_freeinfo(found); \
} while (0)
#define NO_ANSWER(version, node, service, flags, set) do { \
	struct fi_info *h = hints_of(info->domain_attr->name), *found = NULL; \
	set; \
	GIVES(-FI_ENODATA, ask(h, version, node, service, flags, &found)); \
} while (0)

static void getinfo(void)
{
	const uint32_t now = FI_VERSION(1, 17), old = FI_VERSION(1, 4);
	const uint64_t local_mr = 1ULL << 55;
	struct sockaddr_in *at = info->src_addr;
	char host[INET_ADDRSTRLEN];

	inet_ntop(AF_INET, &at->sin_addr, host, sizeof(host));
	/* Every info has an address, also without hints about it. */
	ANSWER(now, NULL, NULL, 0, , i->src_addr && i->src_addrlen);
	ANSWER(now, NULL, "9228", FI_SOURCE, , i->src_addrlen &&
	       ((struct sockaddr_in *)i->src_addr)->sin_port == htons(9228));
	ANSWER(now, host, "9228", FI_SOURCE | FI_NUMERICHOST, , i->src_addrlen == sizeof(*at) &&
	       ((struct sockaddr_in *)i->src_addr)->sin_addr.s_addr == at->sin_addr.s_addr);
	ANSWER(now, host, "9228", 0, , i->src_addrlen && i->dest_addrlen == sizeof(*at) &&
	       ((struct sockaddr_in *)i->dest_addr)->sin_port == htons(9228));
	NO_ANSWER(now, "localhost", NULL, FI_SOURCE | FI_NUMERICHOST, );
	/* Of all domains those on this host reach it, and know their own address. */
	ANSWER(now, "localhost", "9228", 0, (free(h->domain_attr->name), h->domain_attr->name = NULL),
	       i->src_addrlen && i->dest_addrlen && i->src_addr && i->dest_addr);
	ANSWER(now, "localhost", "9228", FI_SOURCE,
	       (free(h->domain_attr->name), h->domain_attr->name = NULL),
	       i->src_addrlen && i->src_addr && !i->dest_addrlen);
	NO_ANSWER(now, NULL, NULL, 0, (free(h->fabric_attr->prov_name),
				       h->fabric_attr->prov_name = strdup("kfabricc")));
	/* All capabilities of an answer may be asked for again. */
	ANSWER(now, NULL, NULL, 0, (h->caps = info->caps, h->mode = FI_CONTEXT),
	       (i->caps & info->caps) == info->caps);
	NO_ANSWER(now, "no.such.host.invalid", NULL, 0, );
	NO_ANSWER(now, host, NULL, FI_SOURCE, h->addr_format = FI_SOCKADDR_IN6);
	ANSWER(now, host, NULL, FI_SOURCE, h->addr_format = FI_SOCKADDR_IN,
	       i->addr_format == FI_SOCKADDR_IN);
	NO_ANSWER(now, NULL, NULL, 0, h->domain_attr->name[0] = '?');

	/* Capabilities beyond the provider's. */
	NO_ANSWER(now, NULL, NULL, 0, h->caps = FI_TAGGED);
	NO_ANSWER(now, NULL, NULL, 0, h->caps = FI_MSG | FI_MULTI_RECV);
	NO_ANSWER(now, NULL, NULL, 0, h->caps = FI_MSG | FI_HMEM);
	NO_ANSWER(now, NULL, NULL, 0, h->domain_attr->caps = FI_SHARED_AV);
	ANSWER(now, NULL, NULL, 0, h->caps = FI_RMA, (i->caps & FI_RMA) && !(i->caps & FI_MSG) &&
	       !(i->tx_attr->caps & ~i->caps) && !(i->rx_attr->caps & ~i->caps));
	ANSWER(now, NULL, NULL, 0, h->domain_attr->caps = FI_LOCAL_COMM,
	       (i->domain_attr->caps & FI_LOCAL_COMM) && (i->caps & FI_LOCAL_COMM));
	ANSWER(now, NULL, NULL, 0, , !(i->caps & FI_SOURCE_ERR));
	ANSWER(now, NULL, NULL, 0, , i->ep_attr->protocol ==
	       (uint32_t)(shm ? FI_PROTO_SHM : FI_PROTO_RDMA_CM_IB_RC));
	if (!shm)
		ANSWER(now, NULL, NULL, 0, h->caps = FI_MSG | FI_LOCAL_COMM | FI_REMOTE_COMM,
		       i->caps & FI_REMOTE_COMM);
	ANSWER(now, NULL, NULL, 0, h->caps = FI_RMA | FI_FENCE, (i->tx_attr->caps & FI_FENCE) &&
	       !(i->rx_attr->caps & FI_FENCE));
	if (shm)
		NO_ANSWER(now, NULL, NULL, 0, h->domain_attr->caps = FI_REMOTE_COMM);

	/* Registration modes: no bit that the hints have not, and those of old programs. */
	ANSWER(now, NULL, NULL, 0, (h->caps = FI_MSG, h->domain_attr->mr_mode = FI_MR_LOCAL),
	       i->domain_attr->mr_mode == FI_MR_LOCAL);
	NO_ANSWER(now, NULL, NULL, 0, (h->caps = FI_RMA, h->domain_attr->mr_mode = FI_MR_LOCAL));
	NO_ANSWER(now, NULL, NULL, 0, h->domain_attr->mr_mode = 2);
	/* The basic mode says nothing about local memory. */
	NO_ANSWER(now, NULL, NULL, 0, h->domain_attr->mr_mode = 1);
	ANSWER(now, NULL, NULL, 0, (h->domain_attr->mr_mode = 1, h->mode |= local_mr),
	       i->domain_attr->mr_mode == 1 && (i->mode & local_mr));
	ANSWER(now, NULL, NULL, 0, h->domain_attr->mr_mode = 1 | FI_MR_LOCAL,
	       i->domain_attr->mr_mode == (1 | FI_MR_LOCAL) && !(i->mode & local_mr));
	for (int mode = 0; mode < 2; mode++)
		ANSWER(old, NULL, NULL, 0,
		       (h->domain_attr->mr_mode = mode, h->mode |= local_mr),
		       i->domain_attr->mr_mode == 1 && (i->mode & local_mr));
	NO_ANSWER(old, NULL, NULL, 0, h->domain_attr->mr_mode = 1);

	/* Progress, completion data, orders. */
	ANSWER(now, NULL, NULL, 0, h->domain_attr->data_progress = FI_PROGRESS_MANUAL,
	       i->domain_attr->data_progress == FI_PROGRESS_MANUAL &&
	       i->domain_attr->control_progress == FI_PROGRESS_AUTO);
	ANSWER(now, NULL, NULL, 0, h->domain_attr->control_progress = FI_PROGRESS_MANUAL,
	       i->domain_attr->control_progress == FI_PROGRESS_MANUAL);
	ANSWER(now, NULL, NULL, 0, (h->mode = 0, h->caps = FI_MSG, h->domain_attr->cq_data_size = 4),
	       i->domain_attr->cq_data_size >= 4);
	NO_ANSWER(now, NULL, NULL, 0, (h->mode = 0, h->caps = FI_RMA,
				       h->domain_attr->cq_data_size = 4));
	NO_ANSWER(now, NULL, NULL, 0, h->tx_attr->msg_order = FI_ORDER_WAR);
	ANSWER(now, NULL, NULL, 0, h->tx_attr->msg_order = FI_ORDER_SAS | FI_ORDER_RAW,
	       i->ep_attr->max_order_raw_size > 0);

	/* An open fabric and an open domain select their infos. */
	ANSWER(now, NULL, NULL, 0, (h->domain_attr->domain = domain, h->fabric_attr->fabric = fabric),
	       !strcmp(i->domain_attr->name, info->domain_attr->name) &&
	       !strcmp(i->fabric_attr->name, info->fabric_attr->name));
}

/* ---- endpoints that are opened in other ways ---- */

/* Waits for a request and opens and accepts an endpoint for it; then both ends are connected. */
static void serve(struct fid_eq *eq, struct end *a, struct end *b)
{
	struct fi_eq_cm_entry entry;

	event(eq, FI_CONNREQ, &entry, NULL);
	open_end(b, entry.info, 0);
	fi_freeinfo(entry.info);
	OK(fi_accept(b->ep, NULL, 0));
	event(a->eq, FI_CONNECTED, &entry, NULL);
	event(b->eq, FI_CONNECTED, &entry, NULL);
}

/* An active endpoint takes the address of a passive one. */
static void taken_address(void)
{
	struct fid_eq *eq = open_eq(), *other = open_eq();
	struct fid_pep *pep = open_pep(eq), *own;
	struct fi_info *h = hints_of(info->domain_attr->name), *found;
	struct sockaddr_in at, name, set;
	struct end a, b;
	size_t len = sizeof(name);
	char host[INET_ADDRSTRLEN], port[8];

	OK(fi_listen(pep));
	at = address(pep);
	/* The name is known before there is an event queue. */
	OK(fi_passive_ep(fabric, info, &own, NULL));
	set = at;
	set.sin_port = htons(9229);
	OK(fi_setname(&own->fid, &set, sizeof(set)));
	OK(fi_getname(&own->fid, &name, &len));
	CHECK(len == sizeof(set) && !memcmp(&name, &set, len));
	inet_ntop(AF_INET, &at.sin_addr, host, sizeof(host));
	snprintf(port, sizeof(port), "%d", ntohs(at.sin_port));
	h->handle = &own->fid;
	OK(ask(h, FI_VERSION(1, 17), host, port, 0, &found));
	CHECK(found->handle == &own->fid);
	/* An endpoint that cannot be opened leaves the address. */
	found->tx_attr->size <<= 20;
	CHECK(fi_endpoint(domain, found, &b.ep, NULL) < 0);
	found->tx_attr->size >>= 20;
	open_end(&a, found, 0);
	GIVES(-FI_EINVAL, fi_endpoint(domain, found, &b.ep, NULL));
	CHECK(fi_pep_bind(own, &other->fid, 0) == 0 && fi_listen(own) < 0);
	OK(fi_close(&own->fid));
	OK(fi_getname(&a.ep->fid, &name, &len));
	CHECK(len == sizeof(set) && !memcmp(&name, &set, len));
	GIVES(-FI_ENOTCONN, fi_getpeer(a.ep, &name, &len));
	OK(fi_connect(a.ep, found->dest_addr, NULL, 0));
	serve(eq, &a, &b);
	len = sizeof(name);
	OK(fi_getname(&a.ep->fid, &name, &len));
	CHECK(len == sizeof(set) && !memcmp(&name, &set, len));
	OK(fi_getpeer(b.ep, &name, &len));
	CHECK(shm || name.sin_port == set.sin_port);
	OK(fi_getname(&b.ep->fid, &name, &len));
	CHECK(name.sin_port == at.sin_port);
	unpair(&a, &b);
	fi_freeinfo(found);
	OK(fi_close(&pep->fid));
	OK(fi_close(&eq->fid));
	OK(fi_close(&other->fid));
}

static void endpoints(void)
{
	struct fid_eq *eq = open_eq();
	struct fid_pep *pep = open_pep(eq);
	struct fi_eq_cm_entry entry;
	struct fi_info *of = fi_dupinfo(info);
	struct fid_ep *ep;
	struct sockaddr_in at;
	struct end a, b;
	uint64_t flags;
	int backlog = 3;
	size_t max;

	GIVES(-FI_EINVAL, fi_pep_bind(pep, &eq->fid, 0));
	GIVES(-FI_ENOPROTOOPT, fi_setopt(&pep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &max,
					 sizeof(max)));
	OK(fi_control(&pep->fid, FI_BACKLOG, &backlog));
	GIVES(-FI_ENOSYS, fi_control(&pep->fid, FI_GETWAIT, &backlog));
	OK(fi_listen(pep));
	at = address(pep);

	/* Infos that no endpoint can have. */
	CHECK(of);
	of->ep_attr->type = FI_EP_RDM;
	GIVES(-FI_EINVAL, fi_endpoint(domain, of, &ep, NULL));
	of->ep_attr->type = FI_EP_MSG;
	of->tx_attr->size = (1ULL << 32) + 1;
	GIVES(-FI_EINVAL, fi_endpoint(domain, of, &ep, NULL));
	of->tx_attr->size = info->tx_attr->size;

	/* Connecting and accepting enable an endpoint. One that only sends needs one queue. */
	of->caps = FI_MSG | FI_SEND;
	memset(&a, 0, sizeof(a));
	a.eq = open_eq();
	a.cq = open_cq();
	a.mem = calloc(1, LEN);
	CHECK(a.mem);
	OK(fi_mr_reg(domain, a.mem, LEN, FI_SEND, 0, 0, 0, &a.mr, NULL));
	OK(fi_endpoint(domain, of, &a.ep, NULL));
	GIVES(-FI_ENOEQ, fi_connect(a.ep, &at, NULL, 0));
	OK(fi_ep_bind(a.ep, &a.eq->fid, 0));
	GIVES(-FI_ENOCQ, fi_connect(a.ep, &at, NULL, 0));
	GIVES(-FI_EINVAL, fi_ep_bind(a.ep, &domain->fid, 0));
	OK(fi_ep_bind(a.ep, &a.cq->fid, FI_TRANSMIT));
	GIVES(-FI_ENOPROTOOPT, fi_setopt(&a.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &max,
					 sizeof(max)));
	OK(fi_connect(a.ep, &at, NULL, 0));
	serve(eq, &a, &b);
	OK(fi_enable(a.ep));
	flags = FI_TRANSMIT;
	OK(fi_control(&a.ep->fid, FI_GETOPSFLAG, &flags));
	CHECK(flags == info->tx_attr->op_flags);
	flags = FI_TRANSMIT | FI_COMPLETION;
	OK(fi_control(&a.ep->fid, FI_SETOPSFLAG, &flags));
	flags = FI_TRANSMIT;
	OK(fi_control(&a.ep->fid, FI_GETOPSFLAG, &flags));
	CHECK(flags == FI_COMPLETION);
	flags = FI_TRANSMIT | FI_MULTI_RECV;
	GIVES(-FI_EBADFLAGS, fi_control(&a.ep->fid, FI_SETOPSFLAG, &flags));
	GIVES(-FI_EINVAL, fi_control(&a.ep->fid, FI_GETOPSFLAG, &(uint64_t){ 0 }));
	OK(fi_recv(b.ep, b.mem, 8, fi_mr_desc(b.mr), 0, &b));
	OK(fi_inject(a.ep, NULL, 0, 0));
	completion(b.cq, &b, FI_RECV);
	OK(fi_recv(b.ep, b.mem, 8, fi_mr_desc(b.mr), 0, &b));
	OK(fi_send(a.ep, a.mem, 8, fi_mr_desc(a.mr), 0, &a));
	completion(a.cq, &a, FI_SEND);
	completion(b.cq, &b, FI_RECV);
	unpair(&a, &b);

	/* A refusal with too much data leaves the request. */
	open_end(&a, info, 0);
	OK(fi_connect(a.ep, &at, NULL, 0));
	event(eq, FI_CONNREQ, &entry, NULL);
	max = data_size(&pep->fid);
	GIVES(-FI_EINVAL, fi_reject(pep, entry.info->handle, calloc(1, 512), 512));
	OK(fi_reject(pep, entry.info->handle, "n", 1));
	fi_freeinfo(entry.info);
	/* A first look leaves the failure in the queue. */
	struct fi_eq_err_entry err = { 0 };
	uint32_t kind;
	GIVES(-FI_EAVAIL, fi_eq_sread(a.eq, &kind, &entry, sizeof(entry), LIMIT_MS, 0));
	GIVES(sizeof(err), fi_eq_readerr(a.eq, &err, FI_PEEK));
	CHECK(err.err == FI_ECONNREFUSED && err.err_data_size == 1);
	GIVES(-FI_EAVAIL, fi_eq_read(a.eq, &kind, &entry, sizeof(entry), 0));
	memset(&err, 0, sizeof(err));
	GIVES(sizeof(err), fi_eq_readerr(a.eq, &err, 0));
	CHECK(err.err == FI_ECONNREFUSED && !memcmp(err.err_data, "n", 1));
	GIVES(-FI_EAGAIN, fi_eq_readerr(a.eq, &err, 0));
	close_end(&a);
	OK(fi_close(&pep->fid));
	OK(fi_close(&eq->fid));
	fi_freeinfo(of);
}
