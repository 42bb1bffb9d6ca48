// SPDX-License-Identifier: MIT OR Apache-2.0
/* Cases of fi_cases.c: keys of parts of regions, of one use, and of one endpoint. */
/* ---- regions within regions ---- */

/* Registers memory with attributes of libfabric 2. Returns the status. */
static int reg_part(void *at, size_t len, uint64_t access, struct fid_mr *base, size_t parts,
		    uint64_t flags, struct fid_mr **mr)
{
	struct iovec iov = { at, len };
	struct fi_mr_attr attr = {
		.mr_iov = &iov, .iov_count = 1, .access = access, .context = at,
		.base_mr = base, .sub_mr_cnt = parts,
	};

	return fi_mr_regattr(domain, &attr, flags, mr);
}

/* Reads 16 bytes of the peer through a region's key; the bytes are checked. */
static void can_read(struct end *a, void *at, struct fid_mr *mr)
{
	memset(a->mem, 0, 16);
	OK(fi_read(a->ep, a->mem, 16, fi_mr_desc(a->mr), 0, (uint64_t)(uintptr_t)at,
		   fi_mr_key(mr), a));
	completion(a->cq, a, FI_READ);
	CHECK(!memcmp(a->mem, at, 16));
}

/* Through the key the peer's memory cannot be read. The connection may be lost. */
static void cannot_read(struct end *a, void *at, uint64_t key)
{
	OK(fi_read(a->ep, a->mem, 16, fi_mr_desc(a->mr), 0, (uint64_t)(uintptr_t)at, key, a));
	CHECK(failure(a->cq, a).err == FI_EACCES);
}

static void sub_regions(void)
{
	const uint64_t both = FI_REMOTE_READ | FI_REMOTE_WRITE;
	uint8_t *mem = aligned_alloc(4096, LEN), raw[8];
	struct fid_mr *base, *parts[4], *inner, *none;
	struct end a, b;
	uint64_t key, at;
	size_t size;
	void *desc;

	CHECK(mem);
	fill(mem, LEN, 9);
	/* With the hint, and without: then the provider registers once more. */
	for (int announced = 1; announced >= 0; announced--) {
		pair(&a, &b);
		OK(reg_part(mem, LEN, RIGHTS, NULL, announced ? 2 : 0, 0, &base));
		CHECK(fi_mr_key(base) != FI_KEY_NOTAVAIL);
		can_read(&a, mem + 100, base);
		/* More parts than announced. */
		for (int i = 0; i < 4; i++) {
			OK(reg_part(mem + 4096 * i, 4096, FI_REMOTE_READ, base, 0, 0, &parts[i]));
			CHECK(parts[i]->fid.fclass == FI_CLASS_MR && fi_mr_desc(parts[i]));
			CHECK(parts[i]->fid.context == mem + 4096 * i);
			CHECK(fi_mr_key(parts[i]) != fi_mr_key(base));
			can_read(&a, mem + 4096 * i + 8, parts[i]);
		}
		/* A part of a part; local use of a part. */
		OK(reg_part(mem + 4096 + 512, 512, FI_REMOTE_READ, parts[1], 0, 0, &inner));
		can_read(&a, mem + 4096 + 600, inner);
		GIVES(-FI_EBUSY, fi_close(&parts[1]->fid));
		OK(fi_close(&inner->fid));
		OK(fi_recv(b.ep, b.mem, 16, fi_mr_desc(b.mr), 0, &b));
		OK(fi_send(a.ep, mem + 4096, 16, fi_mr_desc(parts[1]), 0, &a));
		completion(a.cq, &a, FI_SEND);
		completion(b.cq, &b, FI_RECV);
		CHECK(!memcmp(b.mem, mem + 4096, 16));
		/* As local memory a part ends where its window ends. */
		desc = fi_mr_desc(parts[1]);
		GIVES(-FI_EINVAL, fi_send(a.ep, mem + 4096 - 8, 16, desc, 0, &a));
		GIVES(-FI_EINVAL, fi_send(a.ep, mem + 8192 - 8, 16, desc, 0, &a));
		GIVES(-FI_EINVAL, fi_recv(a.ep, mem + 8192, 8, desc, 0, &a));

		/* Outside of the base, or with rights that the base has not. */
		GIVES(-FI_EINVAL, reg_part(mem + LEN - 8, 16, FI_REMOTE_READ, base, 0, 0, &none));
		GIVES(-FI_EINVAL, reg_part(mem - 8, 16, FI_REMOTE_READ, base, 0, 0, &none));
		GIVES(-FI_EINVAL, reg_part(mem, 0, FI_REMOTE_READ, base, 0, 0, &none));
		GIVES(-FI_EINVAL, reg_part(mem, 8192, FI_REMOTE_READ, parts[0], 0, 0, &none));
		GIVES(-FI_EACCES, reg_part(mem, 16, both, parts[0], 0, 0, &none));
		GIVES(-FI_EINVAL, reg_part(mem, 16, FI_REMOTE_READ, (void *)domain, 0, 0, &none));

		/* Raw keys. */
		size = 3;
		GIVES(-FI_ETOOSMALL, fi_mr_raw_attr(parts[2], &at, raw, &size, 0));
		CHECK(size == sizeof(raw));
		OK(fi_mr_raw_attr(parts[2], &at, raw, &size, 0));
		CHECK(at == (uint64_t)(uintptr_t)(mem + 8192));
		OK(fi_mr_map_raw(domain, at, raw, size, &key, 0));
		CHECK(key == fi_mr_key(parts[2]));
		OK(fi_mr_unmap_key(domain, key));

		/* The end of a part is the end of its key, and of no other. */
		GIVES(-FI_EBUSY, fi_close(&base->fid));
		can_read(&a, mem + 8, base);
		key = fi_mr_key(parts[0]);
		OK(fi_close(&parts[0]->fid));
		can_read(&a, mem + 4096, parts[1]);
		cannot_read(&a, mem, key);
		for (int i = 1; i < 4; i++)
			OK(fi_close(&parts[i]->fid));
		OK(fi_close(&base->fid));
		unpair(&a, &b);

		/* Beyond its part a key is of no use. */
		pair(&a, &b);
		OK(reg_part(mem, LEN, RIGHTS, NULL, announced, 0, &base));
		OK(reg_part(mem + 4096, 4096, FI_REMOTE_READ, base, 0, 0, &parts[0]));
		cannot_read(&a, mem + 8192 - 8, fi_mr_key(parts[0]));
		OK(fi_close(&parts[0]->fid));
		OK(fi_close(&base->fid));
		unpair(&a, &b);
	}
	free(mem);
}

/* ---- keys of one use ---- */

static void single_use(void)
{
	struct fid_mr *mr, *base;
	struct end a, b;
	int rc;

	pair(&a, &b);
	fill(b.mem, LEN, 4);
	rc = reg_part(b.mem, 4096, FI_REMOTE_READ, NULL, 0, FI_MR_SINGLE_USE, &mr);
	if (!shm) {
		GIVES(-FI_EBADFLAGS, rc);
		GIVES(-FI_EBADFLAGS, reg_part(b.mem, 64, FI_REMOTE_READ, b.mr, 0, FI_MR_SINGLE_USE,
					      &mr));
		unpair(&a, &b);
		return;
	}
	OK(rc);
	can_read(&a, b.mem, mr);
	cannot_read(&a, b.mem, fi_mr_key(mr));
	OK(fi_close(&mr->fid));
	/* A key that nobody has used ends with its region. */
	OK(reg_part(b.mem, 4096, FI_REMOTE_READ, NULL, 0, FI_MR_SINGLE_USE, &mr));
	OK(fi_close(&mr->fid));
	unpair(&a, &b);
	pair(&a, &b);
	OK(reg_part(b.mem, LEN, RIGHTS, NULL, 1, 0, &base));
	OK(reg_part(b.mem + 64, 64, FI_REMOTE_READ, base, 0, FI_MR_SINGLE_USE, &mr));
	can_read(&a, b.mem + 64, mr);
	can_read(&a, b.mem, base);
	cannot_read(&a, b.mem + 64, fi_mr_key(mr));
	OK(fi_close(&mr->fid));
	OK(fi_close(&base->fid));
	unpair(&a, &b);
}

/* ---- keys of one endpoint ---- */

/* Opens an end in a domain, and starts to connect. */
static void open_end_of(struct end *e, struct sockaddr_in *to, struct fid_domain *of)
{
	struct fid_domain *other = domain;

	domain = of;
	open_end(e, info, 0);
	domain = other;
	OK(fi_connect(e->ep, to, NULL, 0));
}

static void endpoint_keys(void)
{
	struct fi_info *h = hints_of(info->domain_attr->name), *found, *of = NULL;
	struct fid_domain *plain = domain;
	struct sockaddr_in *at = info->src_addr;
	struct fid_eq *eq;
	struct fid_pep *pep;
	struct fi_eq_cm_entry entry;
	struct sockaddr_in to;
	struct end a, b, c;
	struct fid_mr *mr, *local;
	char host[INET_ADDRSTRLEN];

	inet_ntop(AF_INET, &at->sin_addr, host, sizeof(host));
	h->domain_attr->mr_mode |= FI_MR_ENDPOINT;
	OK(ask(h, newest(), host, "0", FI_SOURCE, &found));
	/* An info without the mode is first, one with it follows. */
	CHECK(!(found->domain_attr->mr_mode & FI_MR_ENDPOINT));
	for (struct fi_info *i = found; i && !of; i = i->next)
		if (i->domain_attr->mr_mode & FI_MR_ENDPOINT)
			of = i;
	CHECK(of);

	/* The peer's memory is that of a domain without the mode; one end has keys of its own. */
	eq = open_eq();
	pep = open_pep(eq);
	OK(fi_listen(pep));
	to = address(pep);
	memset(&b, 0, sizeof(b));
	open_end(&a, info, 0);
	OK(fi_connect(a.ep, &to, NULL, 0));
	event(eq, FI_CONNREQ, &entry, NULL);
	OK(fi_domain(fabric, of, &domain, NULL));
	b.eq = open_eq();
	b.cq = open_cq();
	b.mem = calloc(1, LEN);
	CHECK(b.mem);
	fill(b.mem, LEN, 5);
	OK(fi_endpoint(domain, entry.info, &b.ep, &b));
	fi_freeinfo(entry.info);
	OK(fi_ep_bind(b.ep, &b.eq->fid, 0));
	OK(fi_ep_bind(b.ep, &b.cq->fid, FI_TRANSMIT | FI_RECV));
	/* A region has neither memory nor key until it is enabled. */
	OK(fi_mr_reg(domain, b.mem, LEN, FI_REMOTE_READ | FI_RECV, 0, 0, 0, &mr, NULL));
	CHECK(fi_mr_key(mr) == FI_KEY_NOTAVAIL);
	GIVES(-FI_EINVAL, fi_mr_enable(mr));
	GIVES(-FI_ENOSYS, fi_mr_bind(mr, &b.cq->fid, 0));
	GIVES(-FI_EBADFLAGS, fi_mr_bind(mr, &b.ep->fid, FI_WRITE));
	GIVES(-FI_EBUSY, fi_close(&domain->fid));
	OK(fi_enable(b.ep));
	GIVES(-FI_EINVAL, fi_recv(b.ep, b.mem, 16, fi_mr_desc(mr), 0, &b));
	OK(fi_mr_bind(mr, &b.ep->fid, 0));
	GIVES(-FI_EINVAL, fi_mr_bind(mr, &b.ep->fid, 0));
	OK(fi_mr_enable(mr));
	CHECK(fi_mr_key(mr) != FI_KEY_NOTAVAIL);
	OK(fi_mr_enable(mr));
	/* Local memory needs no endpoint. */
	OK(fi_mr_reg(domain, b.mem, LEN, FI_SEND, 0, 0, 0, &local, NULL));
	OK(fi_mr_enable(local));
	CHECK(fi_mr_key(local) == FI_KEY_NOTAVAIL);
	OK(fi_close(&local->fid));
	OK(fi_accept(b.ep, NULL, 0));
	event(a.eq, FI_CONNECTED, &entry, NULL);
	event(b.eq, FI_CONNECTED, &entry, NULL);
	can_read(&a, b.mem + 64, mr);
	OK(fi_recv(b.ep, b.mem, 16, fi_mr_desc(mr), 0, &b));
	OK(fi_send(a.ep, a.mem, 16, fi_mr_desc(a.mr), 0, &a));
	completion(a.cq, &a, FI_SEND);
	completion(b.cq, &b, FI_RECV);

	/* Through another endpoint the key is of no use. */
	open_end_of(&c, &to, plain);
	event(eq, FI_CONNREQ, &entry, NULL);
	struct end d;
	struct fid_domain *own = domain;
	domain = plain;
	open_end(&d, entry.info, 0);
	fi_freeinfo(entry.info);
	OK(fi_accept(d.ep, NULL, 0));
	event(c.eq, FI_CONNECTED, &entry, NULL);
	event(d.eq, FI_CONNECTED, &entry, NULL);
	cannot_read(&c, b.mem + 64, fi_mr_key(mr));
	close_end(&c);
	close_end(&d);

	OK(fi_close(&mr->fid));
	close_end(&b);
	OK(fi_close(&own->fid));
	close_end(&a);
	OK(fi_close(&pep->fid));
	OK(fi_close(&eq->fid));
	fi_freeinfo(found);
}

/* ---- closing a region that operations use ---- */

static void close_in_use(void)
{
	struct fid_mr *mr;
	struct end a, b;
	uint8_t *mem = calloc(1, LEN);
	uint64_t key;

	CHECK(mem);
	pair(&a, &b);
	fill(mem, LEN, 2);
	OK(fi_mr_reg(domain, mem, LEN, RIGHTS, 0, 0, 0, &mr, NULL));
	can_read(&a, mem, mr);
	/* A receive uses the region: the close ends the key, and the receive completes. A receive of
	 * rings is canceled instead. */
	OK(fi_recv(b.ep, mem, 16, fi_mr_desc(mr), 0, &b));
	key = fi_mr_key(mr);
	OK(fi_close(&mr->fid));
	if (rings) {
		CHECK(failure(b.cq, &b).err == FI_ECANCELED);
		OK(fi_recv(b.ep, b.mem, 16, fi_mr_desc(b.mr), 0, &b));
	}
	OK(fi_send(a.ep, a.mem, 16, fi_mr_desc(a.mr), 0, &a));
	completion(a.cq, &a, FI_SEND);
	completion(b.cq, &b, FI_RECV);
	cannot_read(&a, mem, key);
	unpair(&a, &b);
	free(mem);
}
