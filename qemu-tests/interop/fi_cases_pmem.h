// SPDX-License-Identifier: MIT OR Apache-2.0
/* Case of fi_cases.c: durable writes to persistent memory. */

#include <fcntl.h>
#include <sys/mman.h>

/* Bytes of the mapping: device-dax maps large pages only. */
#define DAX_LEN (2u << 20)

/* Writes durably to the device-dax device that the environment names. */
static void durable(void)
{
	const char *path = getenv("FI_CASES_DAX");
	struct end a, b;
	struct iovec iov;
	void *desc;
	struct fi_rma_iov range;
	struct fi_msg_rma msg = { .desc = &desc, .msg_iov = &iov, .rma_iov = &range,
				  .iov_count = 1, .rma_iov_count = 1, .context = &range };
	struct iovec place;
	struct fi_mr_attr attr = { .mr_iov = &place, .iov_count = 1, .access = FI_REMOTE_WRITE };
	struct fid_mr *mr, *part;
	uint8_t *dax;
	int fd;

	CHECK(path && info->caps & FI_RMA_PMEM);
	fd = open(path, O_RDWR);
	CHECK(fd >= 0);
	dax = mmap(NULL, DAX_LEN, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(dax != MAP_FAILED);

	pair(&a, &b);
	GIVES(-FI_EINVAL, fi_mr_reg(domain, a.mem, LEN, FI_REMOTE_WRITE, 0, 0, FI_RMA_PMEM, &mr,
				    NULL));
	OK(fi_mr_reg(domain, dax, DAX_LEN, FI_REMOTE_WRITE, 0, 0, FI_RMA_PMEM, &mr, NULL));
	/* A part of persistent memory is persistent, a part of other memory is not. */
	place = (struct iovec){ dax + 4096, 4096 };
	attr.base_mr = mr;
	OK(fi_mr_regattr(domain, &attr, FI_RMA_PMEM, &part));
	OK(fi_close(&part->fid));
	place = (struct iovec){ b.mem, 8 };
	attr.base_mr = b.mr;
	GIVES(-FI_EINVAL, fi_mr_regattr(domain, &attr, FI_RMA_PMEM, &part));

	fill(a.mem, 100, 1);
	memset(dax, 0, 200);
	iov = (struct iovec){ a.mem, 100 };
	desc = fi_mr_desc(a.mr);
	range = (struct fi_rma_iov){ (uintptr_t)dax + 7, 100, fi_mr_key(mr) };
	OK(fi_writemsg(a.ep, &msg, FI_COMMIT_COMPLETE | FI_COMPLETION));
	completion(a.cq, &range, FI_RMA | FI_WRITE);
	CHECK(!memcmp(a.mem, dax + 7, 100));

	/* Data arrive after the bytes are durable. */
	OK(fi_recv(b.ep, b.mem, 0, NULL, 0, &b));
	msg.data = 9;
	OK(fi_writemsg(a.ep, &msg, FI_COMMIT_COMPLETE | FI_COMPLETION | FI_REMOTE_CQ_DATA));
	completion(a.cq, &range, FI_RMA | FI_WRITE);
	CHECK(completion(b.cq, &b, FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA).data == 9);

	/* Other memory is refused, and the connection stays. */
	range = (struct fi_rma_iov){ (uintptr_t)b.mem, 100, fi_mr_key(b.mr) };
	OK(fi_writemsg(a.ep, &msg, FI_COMMIT_COMPLETE | FI_COMPLETION));
	CHECK(failure(a.cq, &range).err == FI_EOPNOTSUPP);
	OK(fi_writemsg(a.ep, &msg, FI_COMPLETION));
	completion(a.cq, &range, FI_RMA | FI_WRITE);

	OK(fi_close(&mr->fid));
	unpair(&a, &b);
	munmap(dax, DAX_LEN);
	close(fd);
}
