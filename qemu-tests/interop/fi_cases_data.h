// SPDX-License-Identifier: MIT OR Apache-2.0
/* Cases of fi_cases.c: memory, one-sided operations, atomics, messages. */
/* ---- memory ---- */

static void registration(void)
{
	uint8_t *mem = calloc(1, LEN);
	struct iovec iov[2] = { { mem + 1, 100 }, { mem + 200, 100 } };
	struct fi_mr_attr attr = {
		.mr_iov = iov, .iov_count = 1, .access = FI_REMOTE_READ, .context = mem,
	};
	struct fid_mr *mr, *other;

	CHECK(mem);
	OK(fi_mr_reg(domain, mem, LEN, FI_SEND | FI_RECV, 0, 0, 0, &mr, mem));
	CHECK(mr->fid.fclass == FI_CLASS_MR && mr->fid.context == mem && fi_mr_desc(mr));
	CHECK(fi_mr_key(mr) == FI_KEY_NOTAVAIL);
	OK(fi_mr_reg(domain, mem, LEN, FI_REMOTE_WRITE, 0, 0, 0, &other, NULL));
	CHECK(fi_mr_key(other) != FI_KEY_NOTAVAIL);
	OK(fi_close(&other->fid));
	OK(fi_close(&mr->fid));
	OK(fi_mr_regv(domain, iov, 1, FI_REMOTE_READ, 0, 0, 0, &mr, NULL));
	OK(fi_mr_regattr(domain, &attr, 0, &other));
	CHECK(other->fid.context == mem && fi_mr_key(other) != FI_KEY_NOTAVAIL);
	CHECK(fi_mr_key(other) != fi_mr_key(mr));
	OK(fi_close(&other->fid));
	OK(fi_close(&mr->fid));

	/* All rights, each without the others, and none. */
	for (uint64_t bits = 0; bits < 64; bits++) {
		static const uint64_t right[] = { FI_SEND, FI_RECV, FI_READ, FI_WRITE,
						  FI_REMOTE_READ, FI_REMOTE_WRITE };
		uint64_t access = 0;

		for (int i = 0; i < 6; i++)
			access |= bits & 1 << i ? right[i] : 0;
		OK(fi_mr_reg(domain, mem, LEN, access, 0, 0, 0, &mr, NULL));
		CHECK((fi_mr_key(mr) != FI_KEY_NOTAVAIL) == !!(bits >> 4));
		OK(fi_close(&mr->fid));
		OK(fi_mr_regv(domain, iov, 1, access, 0, 0, 0, &mr, NULL));
		attr.access = access;
		OK(fi_mr_regattr(domain, &attr, 0, &other));
		CHECK((fi_mr_key(other) != FI_KEY_NOTAVAIL) == !!(bits >> 4));
		OK(fi_close(&other->fid));
		OK(fi_close(&mr->fid));
	}

	GIVES(-FI_EINVAL, fi_mr_regv(domain, iov, 2, FI_SEND, 0, 0, 0, &mr, NULL));
	GIVES(-FI_EINVAL, fi_mr_reg(domain, mem, 0, FI_SEND, 0, 0, 0, &mr, NULL));
	GIVES(-FI_EINVAL, fi_mr_reg(domain, mem, 1, FI_TAGGED, 0, 0, 0, &mr, NULL));
	GIVES(-FI_EBADFLAGS, fi_mr_reg(domain, mem, 1, FI_SEND, 0, 0, FI_RMA_EVENT, &mr, NULL));
	GIVES(-FI_EFAULT, fi_mr_reg(domain, (void *)4096, 1, FI_SEND, 0, 0, 0, &mr, NULL));
	if (!shm) {
		/* Devices have no keys for one use, with or without rights of peers. */
		GIVES(-FI_EBADFLAGS, fi_mr_reg(domain, mem, 1, FI_SEND, 0, 0, FI_MR_SINGLE_USE, &mr,
					       NULL));
	}
	if (!(info->caps & FI_RMA_PMEM)) {
		struct iovec part = { mem, 8 };

		OK(fi_mr_reg(domain, mem, LEN, FI_SEND | FI_REMOTE_WRITE, 0, 0, 0, &other, NULL));
		attr.mr_iov = &part;
		attr.access = FI_REMOTE_WRITE;
		attr.base_mr = other;
		GIVES(-FI_EOPNOTSUPP, fi_mr_regattr(domain, &attr, FI_RMA_PMEM, &mr));
		attr.base_mr = NULL;
		GIVES(-FI_EOPNOTSUPP, fi_mr_regattr(domain, &attr, FI_RMA_PMEM, &mr));
		attr.mr_iov = iov;
		OK(fi_close(&other->fid));
	}
	/* Without FI_HMEM the kind of the memory is ignored. */
	attr.iface = FI_HMEM_CUDA;
	OK(fi_mr_regattr(domain, &attr, 0, &mr));
	OK(fi_close(&mr->fid));
	free(mem);
}

/* ---- one-sided operations ---- */

static void rma(void)
{
	struct end a, b;
	struct fi_cq_data_entry got;
	struct iovec iov[2];
	void *desc[2];
	struct fi_rma_iov range;
	struct fi_msg_rma msg = { .desc = desc, .msg_iov = iov, .rma_iov = &range,
				  .iov_count = 2, .rma_iov_count = 1, .context = &range };
	uint64_t at, key;

	pair(&a, &b);
	at = (uint64_t)(uintptr_t)b.mem;
	key = fi_mr_key(b.mr);
	desc[0] = desc[1] = fi_mr_desc(a.mr);

	fill(b.mem, LEN / 2, 1);
	OK(fi_read(a.ep, a.mem, LEN / 2, desc[0], 0, at, key, &at));
	completion(a.cq, &at, FI_RMA | FI_READ);
	CHECK(!memcmp(a.mem, b.mem, LEN / 2));

	iov[0] = (struct iovec){ a.mem + 100, 50 };
	iov[1] = (struct iovec){ a.mem + 1000, 30 };
	OK(fi_readv(a.ep, iov, desc, 2, 0, at + 7, key, &key));
	completion(a.cq, &key, FI_RMA | FI_READ);
	CHECK(!memcmp(a.mem + 100, b.mem + 7, 50) && !memcmp(a.mem + 1000, b.mem + 57, 30));

	fill(a.mem, LEN / 2, 2);
	OK(fi_write(a.ep, a.mem, LEN / 2, desc[0], 0, at + LEN / 2, key, &a));
	completion(a.cq, &a, FI_RMA | FI_WRITE);
	CHECK(!memcmp(a.mem, b.mem + LEN / 2, LEN / 2));

	OK(fi_writev(a.ep, iov, desc, 2, 0, at + 3, key, NULL));
	completion(a.cq, NULL, FI_RMA | FI_WRITE);
	CHECK(!memcmp(a.mem + 100, b.mem + 3, 50) && !memcmp(a.mem + 1000, b.mem + 53, 30));

	/* A write with data takes a receive of the peer. */
	OK(fi_recv(b.ep, b.mem, 0, NULL, 0, &b));
	fill(a.mem, 64, 3);
	OK(fi_writedata(a.ep, a.mem, 64, desc[0], 0xfeedbeef, 0, at + 9, key, &msg));
	completion(a.cq, &msg, FI_RMA | FI_WRITE);
	got = completion(b.cq, &b, FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA);
	CHECK(got.data == 0xfeedbeef && !memcmp(a.mem, b.mem + 9, 64));

	OK(fi_recv(b.ep, b.mem, 0, NULL, 0, &b));
	range = (struct fi_rma_iov){ .addr = at + 11, .len = 80, .key = key };
	msg.data = 77;
	OK(fi_writemsg(a.ep, &msg, FI_REMOTE_CQ_DATA | FI_COMPLETION | FI_FENCE));
	completion(a.cq, &range, FI_RMA | FI_WRITE);
	CHECK(completion(b.cq, &b, FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA).data == 77);
	CHECK(!memcmp(a.mem + 100, b.mem + 11, 50) && !memcmp(a.mem + 1000, b.mem + 61, 30));
	OK(fi_readmsg(a.ep, &msg, FI_COMPLETION));
	completion(a.cq, &range, FI_RMA | FI_READ);

	/* Injected memory may change at once, and needs no descriptor. Success has no completion. */
	fill(a.mem, 64, 5);
	OK(fi_inject_write(a.ep, a.mem, 64, 0, at, key));
	memset(a.mem, 0, 64);
	fill(a.mem + 64, 32, 6);
	OK(fi_recv(b.ep, b.mem, 0, NULL, 0, &b));
	OK(fi_inject_writedata(a.ep, a.mem + 64, 32, 5, 0, at + 64, key));
	CHECK(completion(b.cq, &b, FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA).data == 5);
	fill(a.mem, 64, 5);
	CHECK(!memcmp(a.mem, b.mem, 96));
	GIVES(-FI_EAGAIN, fi_cq_read(a.cq, &got, 1));

	/* Refused posts. */
	GIVES(-FI_EINVAL, fi_write(a.ep, a.mem, 8, NULL, 0, at, key, NULL));
	GIVES(-FI_EINVAL, fi_write(a.ep, a.mem - 1, 8, desc[0], 0, at, key, NULL));
	GIVES(-FI_EINVAL, fi_inject_write(a.ep, a.mem, info->tx_attr->inject_size + 1, 0, at, key));
	msg.rma_iov_count = 2;
	GIVES(-FI_EINVAL, fi_writemsg(a.ep, &msg, 0));
	msg.rma_iov_count = 1;
	GIVES(-FI_EBADFLAGS, fi_writemsg(a.ep, &msg, FI_MULTICAST));
	unpair(&a, &b);
}

/* Uses a key that does not allow the operation: the initiator gets an error. */
static void refused_key(int inject, int close_first, int past_end)
{
	struct end a, b;
	struct fi_eq_cm_entry entry;
	struct fi_cq_data_entry got;
	uint64_t at, key;

	pair(&a, &b);
	at = (uint64_t)(uintptr_t)b.mem;
	key = fi_mr_key(b.mr);
	fill(b.mem, 16, 1);
	if (close_first) {
		OK(fi_close(&b.mr->fid));
		b.mr = NULL;
	} else if (past_end) {
		at += LEN - 8;
	} else {
		key ^= 0x5a00;
	}
	if (inject) {
		/* There is no context for a failed inject. */
		OK(fi_inject_write(a.ep, a.mem, 16, 0, at, key));
		event(a.eq, FI_SHUTDOWN, &entry, NULL);
		GIVES(-FI_EAGAIN, fi_cq_read(a.cq, &got, 1));
	} else if (close_first) {
		OK(fi_read(a.ep, a.mem, 16, fi_mr_desc(a.mr), 0, at, key, &key));
		CHECK(failure(a.cq, &key).err == FI_EACCES);
		CHECK(!a.mem[1]);
	} else {
		OK(fi_write(a.ep, a.mem, 16, fi_mr_desc(a.mr), 0, at, key, &key));
		CHECK(failure(a.cq, &key).err == FI_EACCES);
	}
	if (b.mem[1] != 8)
		fail(__LINE__, "memory changed", b.mem[1]);
	unpair(&a, &b);
}

static void wrong_key(void)
{
	refused_key(0, 0, 0);
	refused_key(0, 0, 1);
	refused_key(1, 0, 0);
}

static void closed_region(void)
{
	refused_key(0, 1, 0);
}

/* ---- atomics ---- */

static void atomics(void)
{
	struct end a, b;
	struct fi_atomic_attr attr = { 0 };
	struct fi_cq_data_entry got;
	uint64_t value = 5, other = 7, *target, *old, at, key;
	struct fi_ioc operand = { &value, 1 }, compare = { &other, 1 }, result;
	struct fi_rma_ioc range;
	struct fi_msg_atomic msg = { .msg_iov = &operand, .iov_count = 1, .rma_iov = &range,
				     .rma_iov_count = 1, .datatype = FI_UINT64,
				     .op = FI_ATOMIC_WRITE, .context = &msg };
	size_t count = 0;
	void *desc;

	CHECK(info->caps & FI_ATOMIC);
	pair(&a, &b);
	desc = fi_mr_desc(a.mr);
	old = (uint64_t *)a.mem;
	target = (uint64_t *)b.mem;
	at = (uint64_t)(uintptr_t)target;
	key = fi_mr_key(b.mr);

	/* What kverbs has on any device: sum, swap of equal values, read. */
	OK(fi_query_atomic(domain, FI_UINT64, FI_SUM, &attr, FI_FETCH_ATOMIC));
	CHECK(attr.size == 8 && attr.count >= 1);
	OK(fi_fetch_atomicvalid(a.ep, FI_UINT64, FI_SUM, &count));
	CHECK(count == attr.count);
	OK(fi_compare_atomicvalid(a.ep, FI_UINT64, FI_CSWAP, &count));
	GIVES(-FI_EOPNOTSUPP, fi_atomicvalid(a.ep, FI_DOUBLE, FI_SUM, &count));
	GIVES(-FI_EOPNOTSUPP, fi_atomicvalid(a.ep, FI_UINT64, FI_CSWAP, &count));
	GIVES(-FI_EOPNOTSUPP, fi_query_atomic(domain, FI_UINT64, FI_SUM, &attr, FI_TAGGED));

	*target = 100;
	OK(fi_fetch_atomic(a.ep, &value, 1, NULL, old, desc, 0, at, key, FI_UINT64, FI_SUM, &a));
	completion(a.cq, &a, FI_ATOMIC | FI_READ);
	CHECK(*old == 100 && *target == 105);
	OK(fi_fetch_atomic(a.ep, &value, 1, NULL, old + 1, desc, 0, at, key, FI_UINT64,
			   FI_ATOMIC_READ, &a));
	completion(a.cq, &a, FI_ATOMIC | FI_READ);
	CHECK(old[1] == 105 && *target == 105);
	/* The comparand does not match, then it does. */
	for (int i = 0; i < 2; i++) {
		OK(fi_compare_atomic(a.ep, &value, 1, NULL, &other, NULL, old, desc, 0, at, key,
				     FI_UINT64, FI_CSWAP, &b));
		completion(a.cq, &b, FI_ATOMIC | FI_READ);
		CHECK(*old == 105 && *target == (i ? 5u : 105u));
		other = 105;
	}
	range = (struct fi_rma_ioc){ at, 1, key };
	result = (struct fi_ioc){ old, 1 };
	other = 5;
	value = 9;
	msg.op = FI_CSWAP;
	OK(fi_compare_atomicmsg(a.ep, &msg, &compare, NULL, 1, &result, &desc, 1, FI_COMPLETION));
	completion(a.cq, &msg, FI_ATOMIC | FI_READ);
	CHECK(*old == 5 && *target == 9);
	msg.op = FI_SUM;
	OK(fi_fetch_atomicmsg(a.ep, &msg, &result, &desc, 1, FI_COMPLETION));
	completion(a.cq, &msg, FI_ATOMIC | FI_READ);
	CHECK(*old == 9 && *target == 18);

	/* Without a result. */
	if (!fi_atomicvalid(a.ep, FI_UINT64, FI_SUM, &count)) {
		OK(fi_atomic(a.ep, &value, 1, NULL, 0, at, key, FI_UINT64, FI_SUM, &a));
		completion(a.cq, &a, FI_ATOMIC | FI_WRITE);
		CHECK(*target == 27);
		OK(fi_inject_atomic(a.ep, &value, 1, 0, at, key, FI_UINT64, FI_SUM));
		OK(fi_atomicmsg(a.ep, &msg, FI_COMPLETION));
		completion(a.cq, &msg, FI_ATOMIC | FI_WRITE);
		CHECK(*target == 45);
	}
	if (shm) {
		uint8_t bytes[3] = { 1, 2, 3 };

		OK(fi_atomicvalid(a.ep, FI_UINT8, FI_BXOR, &count));
		CHECK(count >= 3);
		b.mem[64] = 3;
		OK(fi_atomic(a.ep, bytes, 3, NULL, 0, at + 64, key, FI_UINT8, FI_BXOR, &a));
		completion(a.cq, &a, FI_ATOMIC | FI_WRITE);
		CHECK(b.mem[64] == 2 && b.mem[65] == 2 && b.mem[66] == 3);
	}
	GIVES(-FI_EAGAIN, fi_cq_read(a.cq, &got, 1));

	/* Refused posts. */
	GIVES(-FI_EINVAL, fi_fetch_atomic(a.ep, &value, 1, NULL, old, desc, 0, at + 1, key,
					  FI_UINT64, FI_SUM, &a));
	GIVES(-FI_EINVAL, fi_fetch_atomic(a.ep, &value, 1, NULL, old, NULL, 0, at, key, FI_UINT64,
					  FI_SUM, &a));
	GIVES(-FI_EMSGSIZE, fi_fetch_atomic(a.ep, a.mem + 512, 9, NULL, old, desc, 0, at, key,
					    FI_UINT64, FI_SUM, &a));
	GIVES(-FI_EOPNOTSUPP, fi_atomic(a.ep, &value, 1, NULL, 0, at, key, FI_FLOAT, FI_SUM, &a));
	/* A key that does not exist. */
	OK(fi_fetch_atomic(a.ep, &value, 1, NULL, old, desc, 0, at, key ^ 0x5a00, FI_UINT64,
			   FI_SUM, &key));
	CHECK(failure(a.cq, &key).err == FI_EACCES);
	unpair(&a, &b);
}

/* ---- messages ---- */

/* Returns whether operations can ask to be visible at the peer before they complete. */
static int visible(void)
{
	struct fi_info *hints = fi_dupinfo(info), *found = NULL;
	int rc;

	CHECK(hints);
	hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
	rc = fi_getinfo(info->fabric_attr->api_version, NULL, NULL, 0, hints, &found);
	CHECK(rc == 0 || rc == -FI_ENODATA);
	fi_freeinfo(hints);
	fi_freeinfo(found);
	return !rc;
}

static void messages(void)
{
	struct end a, b;
	struct fi_cq_data_entry got;
	struct iovec iov[2];
	void *desc[2];
	struct fi_msg msg = { .msg_iov = iov, .desc = desc, .iov_count = 2, .context = &msg,
			      .data = 9 };

	pair(&a, &b);
	desc[0] = desc[1] = fi_mr_desc(a.mr);
	fill(a.mem, LEN / 2, 1);
	OK(fi_recv(b.ep, b.mem, LEN, fi_mr_desc(b.mr), 0, &b));
	OK(fi_send(a.ep, a.mem, LEN / 2, desc[0], 0, &a));
	completion(a.cq, &a, FI_MSG | FI_SEND);
	CHECK(completion(b.cq, &b, FI_MSG | FI_RECV).len == LEN / 2);
	CHECK(!memcmp(a.mem, b.mem, LEN / 2));

	/* Pieces on both sides. */
	iov[0] = (struct iovec){ b.mem, 10 };
	iov[1] = (struct iovec){ b.mem + 100, 60 };
	desc[0] = desc[1] = fi_mr_desc(b.mr);
	OK(fi_recvv(b.ep, iov, desc, 2, 0, NULL));
	OK(fi_recvmsg(b.ep, &msg, FI_COMPLETION));
	desc[0] = desc[1] = fi_mr_desc(a.mr);
	iov[0] = (struct iovec){ a.mem + 5, 30 };
	iov[1] = (struct iovec){ a.mem + 300, 40 };
	OK(fi_sendv(a.ep, iov, desc, 2, 0, &iov));
	completion(a.cq, &iov, FI_SEND);
	CHECK(completion(b.cq, NULL, FI_RECV).len == 70);
	CHECK(!memcmp(b.mem, a.mem + 5, 10) && !memcmp(b.mem + 100, a.mem + 15, 20));
	CHECK(!memcmp(b.mem + 120, a.mem + 300, 40));
	OK(fi_sendmsg(a.ep, &msg, FI_COMPLETION | FI_REMOTE_CQ_DATA | FI_MORE));
	completion(a.cq, &msg, FI_SEND);
	CHECK(completion(b.cq, &msg, FI_RECV | FI_REMOTE_CQ_DATA).data == 9);

	/* A message that has been delivered when it completes. */
	if (visible()) {
		OK(fi_recv(b.ep, b.mem, LEN, fi_mr_desc(b.mr), 0, &b));
		OK(fi_sendmsg(a.ep, &msg, FI_COMPLETION | FI_DELIVERY_COMPLETE));
		/* With rings the peer takes the message when it reads its queue. */
		if (rings)
			completion(b.cq, &b, FI_RECV);
		completion(a.cq, &msg, FI_SEND);
		CHECK(!memcmp(b.mem, a.mem + 5, 30) && !memcmp(b.mem + 30, a.mem + 300, 40));
		if (!rings)
			completion(b.cq, &b, FI_RECV);
	} else {
		GIVES(-FI_EOPNOTSUPP, fi_sendmsg(a.ep, &msg, FI_COMPLETION | FI_DELIVERY_COMPLETE));
	}

	/* Completion data, injects, and an empty message. */
	for (int i = 0; i < 4; i++)
		OK(fi_recv(b.ep, b.mem + 64 * i, 64, fi_mr_desc(b.mr), 0, b.mem + i));
	OK(fi_senddata(a.ep, a.mem, 64, fi_mr_desc(a.mr), 0x1234567, 0, &a));
	completion(a.cq, &a, FI_SEND);
	OK(fi_inject(a.ep, a.mem, 64, 0));
	OK(fi_injectdata(a.ep, a.mem, 1, 8, 0));
	OK(fi_send(a.ep, NULL, 0, NULL, 0, &a));
	completion(a.cq, &a, FI_SEND);
	got = completion(b.cq, b.mem, FI_RECV | FI_REMOTE_CQ_DATA);
	CHECK(got.data == 0x1234567 && got.len == 64);
	got = completion(b.cq, b.mem + 1, FI_RECV);
	CHECK(!(got.flags & FI_REMOTE_CQ_DATA) && got.len == 64);
	got = completion(b.cq, b.mem + 2, FI_RECV | FI_REMOTE_CQ_DATA);
	CHECK(got.data == 8 && got.len == 1);
	CHECK(completion(b.cq, b.mem + 3, FI_RECV).len == 0);
	CHECK(!memcmp(b.mem, a.mem, 64) && !memcmp(b.mem + 64, a.mem, 64));
	GIVES(-FI_EAGAIN, fi_cq_read(a.cq, &got, 1));
	unpair(&a, &b);

	/* Selective completion: only what asks for it is reported. */
	pair_with(&a, &b, FI_SELECTIVE_COMPLETION);
	iov[0] = (struct iovec){ b.mem, 64 };
	desc[0] = fi_mr_desc(b.mr);
	msg.iov_count = 1;
	OK(fi_recv(b.ep, b.mem, 64, fi_mr_desc(b.mr), 0, &b));
	OK(fi_recvmsg(b.ep, &msg, FI_COMPLETION));
	iov[0] = (struct iovec){ a.mem, 64 };
	desc[0] = fi_mr_desc(a.mr);
	OK(fi_send(a.ep, a.mem, 8, fi_mr_desc(a.mr), 0, &a));
	OK(fi_sendmsg(a.ep, &msg, FI_COMPLETION));
	completion(a.cq, &msg, FI_SEND);
	completion(b.cq, &msg, FI_RECV);
	GIVES(-FI_EAGAIN, fi_cq_read(a.cq, &got, 1));
	GIVES(-FI_EAGAIN, fi_cq_read(b.cq, &got, 1));
	unpair(&a, &b);
}

/* A message that does not fit, and receives that are posted when a connection ends. */
static void failed_messages(void)
{
	struct end a, b;
	struct fi_eq_cm_entry entry;
	struct fi_cq_err_entry err;

	pair(&a, &b);
	OK(fi_recv(b.ep, b.mem, 16, fi_mr_desc(b.mr), 0, &b));
	OK(fi_recv(b.ep, b.mem, 16, fi_mr_desc(b.mr), 0, &b.mem));
	OK(fi_send(a.ep, a.mem, 32, fi_mr_desc(a.mr), 0, &a));
	err = failure(b.cq, &b);
	CHECK(err.err == FI_ETRUNC && (err.flags & FI_RECV));
	CHECK(err.olen == (shm ? 16 : 0));
	unpair(&a, &b);

	pair(&a, &b);
	OK(fi_recv(a.ep, a.mem, 16, fi_mr_desc(a.mr), 0, &a));
	OK(fi_recv(b.ep, b.mem, 16, fi_mr_desc(b.mr), 0, &b));
	OK(fi_shutdown(a.ep, 0));
	event(a.eq, FI_SHUTDOWN, &entry, NULL);
	CHECK(entry.fid == &a.ep->fid);
	event(b.eq, FI_SHUTDOWN, &entry, NULL);
	CHECK(entry.fid == &b.ep->fid);
	CHECK(failure(a.cq, &a).err == FI_ECANCELED);
	CHECK(failure(b.cq, &b).err == FI_ECANCELED);
	CHECK(fi_send(a.ep, a.mem, 1, fi_mr_desc(a.mr), 0, NULL) < 0);
	unpair(&a, &b);

	/* At the return of fi_close all completions are in the queue. */
	pair(&a, &b);
	for (int i = 0; i < 8; i++)
		OK(fi_recv(a.ep, a.mem, 16, fi_mr_desc(a.mr), 0, a.mem + i));
	OK(fi_close(&a.ep->fid));
	a.ep = NULL;
	for (int i = 0; i < 8; i++) {
		struct fi_cq_data_entry none;

		GIVES(-FI_EAVAIL, fi_cq_read(a.cq, &none, 1));
		GIVES(1, fi_cq_readerr(a.cq, &err, 0));
		CHECK(err.err == FI_ECANCELED && err.op_context == a.mem + i);
	}
	unpair(&a, &b);
}

/* Reads until it is told to stop. No failure is the program's. */
static volatile int stop;

static void *read_thread(void *arg)
{
	struct fi_cq_data_entry got;

	while (!stop)
		GIVES(-FI_EAGAIN, fi_cq_read(arg, &got, 1));
	return NULL;
}

/* Failures of injected messages are shown to no reader. */
static void failed_injects(void)
{
	pthread_t threads[2];
	struct end a, b;

	for (int round = 0; round < 10; round++) {
		pair(&a, &b);
		stop = 0;
		for (int i = 0; i < 2; i++)
			OK(pthread_create(&threads[i], NULL, read_thread, a.cq));
		/* Without receives these messages fail with the connection. */
		for (int i = 0; i < 200; i++)
			OK(fi_inject(a.ep, a.mem, 8, 0));
		OK(fi_close(&a.ep->fid));
		a.ep = NULL;
		usleep(5000);
		stop = 1;
		for (int i = 0; i < 2; i++)
			OK(pthread_join(threads[i], NULL));
		GIVES(-FI_EAGAIN, fi_cq_readerr(a.cq, &(struct fi_cq_err_entry){ 0 }, 0));
		unpair(&a, &b);
	}
}

/* A program of version 1.4, whose structures end earlier. */
static void old_program(void)
{
	struct fi_info *h = hints_of(info->domain_attr->name), *old;
	struct fid_fabric *present = fabric;
	struct fid_domain *own = domain;
	struct fi_cq_err_entry err = { .err_data = &err, .err_data_size = 77 };
	struct fi_cq_data_entry none;
	struct end a;

	h->domain_attr->mr_mode = 1;
	h->mode |= 1ULL << 55;
	OK(fi_getinfo(FI_VERSION(1, 4), NULL, NULL, 0, h, &old));
	fi_freeinfo(h);
	OK(fi_fabric(old->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, old, &domain, NULL));
	open_end(&a, old, 0);
	OK(fi_recv(a.ep, a.mem, 8, fi_mr_desc(a.mr), 0, &a));
	OK(fi_close(&a.ep->fid));
	a.ep = NULL;
	GIVES(-FI_EAVAIL, fi_cq_read(a.cq, &none, 1));
	GIVES(1, fi_cq_readerr(a.cq, &err, 0));
	CHECK(err.err == FI_ECANCELED && err.op_context == &a);
	CHECK(err.err_data_size == 77 && !err.err_data);
	close_end(&a);
	OK(fi_close(&domain->fid));
	OK(fi_close(&fabric->fid));
	fi_freeinfo(old);
	fabric = present;
	domain = own;
}

static void cancel(void)
{
	struct end a, b;
	ssize_t rc;

	pair(&a, &b);
	OK(fi_recv(b.ep, b.mem, 16, fi_mr_desc(b.mr), 0, &b));
	OK(fi_recv(b.ep, b.mem, 16, fi_mr_desc(b.mr), 0, &a));
	rc = fi_cancel(&b.ep->fid, &b);
	if (shm) {
		OK(rc);
		CHECK(failure(b.cq, &b).err == FI_ECANCELED);
		GIVES(-FI_ENOENT, fi_cancel(&b.ep->fid, &b));
	} else {
		GIVES(-FI_EOPNOTSUPP, rc);
		OK(fi_send(a.ep, a.mem, 16, fi_mr_desc(a.mr), 0, &a));
		completion(a.cq, &a, FI_SEND);
		completion(b.cq, &b, FI_RECV);
	}
	OK(fi_send(a.ep, a.mem, 16, fi_mr_desc(a.mr), 0, &a));
	completion(a.cq, &a, FI_SEND);
	completion(b.cq, &a, FI_RECV);
	unpair(&a, &b);
}
