/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Functions that return -ENOSYS, for the tables of providers written in C. Each
 * function has the type and the name of the call that it stands in for. The
 * names are those of the published kfi API.
 */
#ifndef KFI_ENOSYS_H
#define KFI_ENOSYS_H

#include <kfi_atomic.h>
#include <kfi_cm.h>
#include <kfi_prov.h>
#include <kfi_rma.h>
#include <kfi_tagged.h>

static inline int kfi_no_close(struct kfid *fid)
{
	return -ENOSYS;
}

static inline int kfi_no_bind(struct kfid *fid, struct kfid *bfid, u64 flags)
{
	return -ENOSYS;
}

static inline int kfi_no_control(struct kfid *fid, int command, void *arg)
{
	return -ENOSYS;
}

static inline int kfi_no_ops_open(struct kfid *fid, const char *name, u64 flags, void **ops,
				  void *context)
{
	return -ENOSYS;
}

static inline int kfi_no_domain(struct kfid_fabric *fabric, struct kfi_info *info,
				struct kfid_domain **dom, void *context)
{
	return -ENOSYS;
}

static inline int kfi_no_passive_ep(struct kfid_fabric *fabric, struct kfi_info *info,
				    struct kfid_pep **pep, void *context)
{
	return -ENOSYS;
}

static inline int kfi_no_eq_open(struct kfid_fabric *fabric, struct kfi_eq_attr *attr,
				 struct kfid_eq **eq, kfi_event_handler event_handler,
				 void *context)
{
	return -ENOSYS;
}

static inline int kfi_no_wait_open(struct kfid_fabric *fabric, struct kfi_wait_attr *attr,
				   struct kfid_wait **waitset)
{
	return -ENOSYS;
}

static inline int kfi_no_av_open(struct kfid_domain *domain, struct kfi_av_attr *attr,
				 struct kfid_av **av, void *context)
{
	return -ENOSYS;
}

static inline int kfi_no_cq_open(struct kfid_domain *domain, struct kfi_cq_attr *attr,
				 struct kfid_cq **cq, kfi_comp_handler comp_handler,
				 void *context)
{
	return -ENOSYS;
}

static inline int kfi_no_endpoint(struct kfid_domain *domain, struct kfi_info *info,
				  struct kfid_ep **ep, void *context)
{
	return -ENOSYS;
}

static inline int kfi_no_scalable_ep(struct kfid_domain *domain, struct kfi_info *info,
				     struct kfid_ep **sep, void *context)
{
	return -ENOSYS;
}

static inline int kfi_no_cntr_open(struct kfid_domain *domain, struct kfi_cntr_attr *attr,
				   struct kfid_cntr **cntr, void *context)
{
	return -ENOSYS;
}

static inline int kfi_no_poll_open(struct kfid_domain *domain, struct kfi_poll_attr *attr,
				   struct kfid_poll **pollset)
{
	return -ENOSYS;
}

static inline int kfi_no_stx_ctx(struct kfid_domain *domain, struct kfi_tx_attr *attr,
				 struct kfid_stx **stx, void *context)
{
	return -ENOSYS;
}

static inline int kfi_no_srx_ctx(struct kfid_domain *domain, struct kfi_rx_attr *attr,
				 struct kfid_ep **rx_ep, void *context)
{
	return -ENOSYS;
}

static inline int kfi_no_query_atomic(struct kfid_domain *domain, enum kfi_datatype datatype,
				      enum kfi_op op, struct kfi_atomic_attr *attr,
				      u64 flags)
{
	return -ENOSYS;
}

static inline int kfi_no_av_insert(struct kfid_av *av, const void *addr, size_t count,
				   kfi_addr_t *kfi_addr, u64 flags, void *context)
{
	return -ENOSYS;
}

static inline int kfi_no_av_insertsvc(struct kfid_av *av, const char *node, const char *service,
				      kfi_addr_t *kfi_addr, u64 flags, void *context)
{
	return -ENOSYS;
}

static inline int kfi_no_av_insertsym(struct kfid_av *av, const char *node, size_t nodecnt,
				      const char *service, size_t svccnt, kfi_addr_t *kfi_addr,
				      u64 flags, void *context)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_eq_write(struct kfid_eq *eq, u32 event, const void *buf, size_t len,
				      u64 flags)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_eq_sread(struct kfid_eq *eq, u32 *event, void *buf, size_t len,
				      int timeout, u64 flags)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_cq_readfrom(struct kfid_cq *cq, void *buf, size_t count,
					 kfi_addr_t *src_addr)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_cq_sread(struct kfid_cq *cq, void *buf, size_t count,
				      const void *cond, int timeout)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_cq_sreadfrom(struct kfid_cq *cq, void *buf, size_t count,
					  kfi_addr_t *src_addr, const void *cond, int timeout)
{
	return -ENOSYS;
}

static inline int kfi_no_cq_signal(struct kfid_cq *cq)
{
	return -ENOSYS;
}

static inline int kfi_no_mr_reg(struct kfid *fid, const void *buf, size_t len, u64 access,
				u64 offset, u64 requested_key, u64 flags, struct kfid_mr **mr,
				void *context)
{
	return -ENOSYS;
}

static inline int kfi_no_mr_regv(struct kfid *fid, const struct kvec *iov, size_t count, u64 access,
				 u64 offset, u64 requested_key, u64 flags, struct kfid_mr **mr,
				 void *context)
{
	return -ENOSYS;
}

static inline int kfi_no_mr_regbv(struct kfid *fid, const struct bio_vec *biov, size_t count,
				  u64 access, u64 offset, u64 requested_key, u64 flags,
				  struct kfid_mr **mr, void *context)
{
	return -ENOSYS;
}

static inline int kfi_no_mr_regattr(struct kfid *fid, const struct kfi_mr_attr *attr, u64 flags,
				    struct kfid_mr **mr)
{
	return -ENOSYS;
}

static inline int kfi_no_mr_regsgl(struct kfid *fid, const struct scatterlist *sgl, size_t count,
				   u64 access, u64 offset, u64 requested_key, u64 flags,
				   struct kfid_mr **mr, void *context)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_cancel(struct kfid *fid, void *context)
{
	return -ENOSYS;
}

static inline int kfi_no_getopt(struct kfid *fid, int level, int optname, void *optval,
				size_t *optlen)
{
	return -ENOSYS;
}

static inline int kfi_no_setopt(struct kfid *fid, int level, int optname, const void *optval,
				size_t optlen)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_rx_size_left(struct kfid_ep *ep)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_tx_size_left(struct kfid_ep *ep)
{
	return -ENOSYS;
}

static inline int kfi_no_tx_ctx(struct kfid_ep *sep, int index, struct kfi_tx_attr *attr,
				struct kfid_ep **tx_ep, void *context)
{
	return -ENOSYS;
}

static inline int kfi_no_rx_ctx(struct kfid_ep *sep, int index, struct kfi_rx_attr *attr,
				struct kfid_ep **rx_ep, void *context)
{
	return -ENOSYS;
}

static inline int kfi_no_setname(struct kfid *fid, void *addr, size_t addrlen)
{
	return -ENOSYS;
}

static inline int kfi_no_getname(struct kfid *fid, void *addr, size_t *addrlen)
{
	return -ENOSYS;
}

static inline int kfi_no_getpeer(struct kfid_ep *ep, void *addr, size_t *addrlen)
{
	return -ENOSYS;
}

static inline int kfi_no_connect(struct kfid_ep *ep, const void *addr, const void *param,
				 size_t paramlen)
{
	return -ENOSYS;
}

static inline int kfi_no_listen(struct kfid_pep *pep)
{
	return -ENOSYS;
}

static inline int kfi_no_accept(struct kfid_ep *ep, const void *param, size_t paramlen)
{
	return -ENOSYS;
}

static inline int kfi_no_reject(struct kfid_pep *pep, kfid_t handle, const void *param,
				size_t paramlen)
{
	return -ENOSYS;
}

static inline int kfi_no_shutdown(struct kfid_ep *ep, u64 flags)
{
	return -ENOSYS;
}

static inline int kfi_no_join(struct kfid_ep *ep, const void *addr, u64 flags,
			      struct kfid_mc **mc, void *context)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_msg_recv(struct kfid_ep *ep, void *buf, size_t len, void *desc,
				      kfi_addr_t src_addr, void *context)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_msg_recvv(struct kfid_ep *ep, const struct kvec *iov, void **desc,
				       size_t count, kfi_addr_t src_addr, void *context)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_msg_recvbv(struct kfid_ep *ep, const struct bio_vec *biov, void **desc,
					size_t count, kfi_addr_t src_addr, void *context)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_msg_recvmsg(struct kfid_ep *ep, const struct kfi_msg *msg, u64 flags)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_msg_send(struct kfid_ep *ep, const void *buf, size_t len, void *desc,
				      kfi_addr_t dest_addr, void *context)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_msg_sendv(struct kfid_ep *ep, const struct kvec *iov, void **desc,
				       size_t count, kfi_addr_t dest_addr, void *context)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_msg_sendbv(struct kfid_ep *ep, const struct bio_vec *biov, void **desc,
					size_t count, kfi_addr_t dest_addr, void *context)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_msg_sendmsg(struct kfid_ep *ep, const struct kfi_msg *msg, u64 flags)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_msg_inject(struct kfid_ep *ep, const void *buf, size_t len,
					kfi_addr_t dest_addr)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_msg_senddata(struct kfid_ep *ep, const void *buf, size_t len,
					  void *desc, u64 data, kfi_addr_t dest_addr, void *context)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_msg_injectdata(struct kfid_ep *ep, const void *buf, size_t len,
					    u64 data, kfi_addr_t dest_addr)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_msg_recvsgl(struct kfid_ep *ep, const struct scatterlist *sgl,
					 void **desc, size_t count, kfi_addr_t src_addr,
					 void *context)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_msg_sendsgl(struct kfid_ep *ep, const struct scatterlist *sgl,
					 void **desc, size_t count, kfi_addr_t dest_addr,
					 void *context)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_rma_read(struct kfid_ep *ep, void *buf, size_t len, void *desc,
				      kfi_addr_t src_addr, u64 addr, u64 key, void *context)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_rma_readv(struct kfid_ep *ep, const struct kvec *iov, void **desc,
				       size_t count, kfi_addr_t src_addr, u64 addr, u64 key,
				       void *context)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_rma_readbv(struct kfid_ep *ep, const struct bio_vec *biov, void **desc,
					size_t count, kfi_addr_t src_addr, u64 addr, u64 key,
					void *context)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_rma_readmsg(struct kfid_ep *ep, const struct kfi_msg_rma *msg,
					 u64 flags)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_rma_write(struct kfid_ep *ep, const void *buf, size_t len, void *desc,
				       kfi_addr_t dest_addr, u64 addr, u64 key, void *context)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_rma_writev(struct kfid_ep *ep, const struct kvec *iov, void **desc,
					size_t count, kfi_addr_t dest_addr, u64 addr, u64 key,
					void *context)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_rma_writebv(struct kfid_ep *ep, const struct bio_vec *biov,
					 void **desc, size_t count, kfi_addr_t dest_addr, u64 addr,
					 u64 key, void *context)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_rma_writemsg(struct kfid_ep *ep, const struct kfi_msg_rma *msg,
					  u64 flags)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_rma_inject(struct kfid_ep *ep, const void *buf, size_t len,
					kfi_addr_t dest_addr, u64 addr, u64 key)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_rma_writedata(struct kfid_ep *ep, const void *buf, size_t len,
					   void *desc, u64 data, kfi_addr_t dest_addr, u64 addr,
					   u64 key, void *context)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_rma_injectdata(struct kfid_ep *ep, const void *buf, size_t len,
					    u64 data, kfi_addr_t dest_addr, u64 addr, u64 key)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_rma_readsgl(struct kfid_ep *ep, const struct scatterlist *sgl,
					 void **desc, size_t count, kfi_addr_t src_addr, u64 addr,
					 u64 key, void *context)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_rma_writesgl(struct kfid_ep *ep, const struct scatterlist *sgl,
					  void **desc, size_t count, kfi_addr_t dest_addr, u64 addr,
					  u64 key, void *context)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_tagged_recv(struct kfid_ep *ep, void *buf, size_t len, void *desc,
					 kfi_addr_t src_addr, u64 tag, u64 ignore, void *context)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_tagged_recvv(struct kfid_ep *ep, const struct kvec *iov, void **desc,
					  size_t count, kfi_addr_t src_addr, u64 tag, u64 ignore,
					  void *context)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_tagged_recvbv(struct kfid_ep *ep, const struct bio_vec *biov,
					   void **desc, size_t count, kfi_addr_t src_addr, u64 tag,
					   u64 ignore, void *context)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_tagged_recvmsg(struct kfid_ep *ep, const struct kfi_msg_tagged *msg,
					    u64 flags)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_tagged_send(struct kfid_ep *ep, const void *buf, size_t len,
					 void *desc, kfi_addr_t dest_addr, u64 tag, void *context)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_tagged_sendv(struct kfid_ep *ep, const struct kvec *iov, void **desc,
					  size_t count, kfi_addr_t dest_addr, u64 tag,
					  void *context)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_tagged_sendbv(struct kfid_ep *ep, const struct bio_vec *biov,
					   void **desc, size_t count, kfi_addr_t dest_addr, u64 tag,
					   void *context)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_tagged_sendmsg(struct kfid_ep *ep, const struct kfi_msg_tagged *msg,
					    u64 flags)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_tagged_inject(struct kfid_ep *ep, const void *buf, size_t len,
					   kfi_addr_t dest_addr, u64 tag)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_tagged_senddata(struct kfid_ep *ep, const void *buf, size_t len,
					     void *desc, u64 data, kfi_addr_t dest_addr, u64 tag,
					     void *context)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_tagged_injectdata(struct kfid_ep *ep, const void *buf, size_t len,
					       u64 data, kfi_addr_t dest_addr, u64 tag)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_tagged_recvsgl(struct kfid_ep *ep, const struct scatterlist *sgl,
					    void **desc, size_t count, kfi_addr_t src_addr, u64 tag,
					    u64 ignore, void *context)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_tagged_sendsgl(struct kfid_ep *ep, const struct scatterlist *sgl,
					    void **desc, size_t count, kfi_addr_t dest_addr,
					    u64 tag, void *context)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_atomic_write(struct kfid_ep *ep, const void *buf, size_t count,
					  void *desc, kfi_addr_t dest_addr, u64 addr, u64 key,
					  enum kfi_datatype datatype, enum kfi_op op, void *context)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_atomic_writev(struct kfid_ep *ep, const struct kfi_ioc *iov,
					   void **desc, size_t count, kfi_addr_t dest_addr,
					   u64 addr, u64 key, enum kfi_datatype datatype,
					   enum kfi_op op, void *context)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_atomic_writemsg(struct kfid_ep *ep, const struct kfi_msg_atomic *msg,
					     u64 flags)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_atomic_inject(struct kfid_ep *ep, const void *buf, size_t count,
					   kfi_addr_t dest_addr, u64 addr, u64 key,
					   enum kfi_datatype datatype, enum kfi_op op)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_atomic_readwrite(struct kfid_ep *ep, const void *buf, size_t count,
					      void *desc, void *result, void *result_desc,
					      kfi_addr_t dest_addr, u64 addr, u64 key,
					      enum kfi_datatype datatype, enum kfi_op op,
					      void *context)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_atomic_readwritev(struct kfid_ep *ep, const struct kfi_ioc *iov,
					       void **desc, size_t count, struct kfi_ioc *resultv,
					       void **result_desc, size_t result_count,
					       kfi_addr_t dest_addr, u64 addr, u64 key,
					       enum kfi_datatype datatype, enum kfi_op op,
					       void *context)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_atomic_readwritemsg(struct kfid_ep *ep,
						 const struct kfi_msg_atomic *msg,
						 struct kfi_ioc *resultv, void **result_desc,
						 size_t result_count, u64 flags)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_atomic_compwrite(struct kfid_ep *ep, const void *buf, size_t count,
					      void *desc, const void *compare, void *compare_desc,
					      void *result, void *result_desc, kfi_addr_t dest_addr,
					      u64 addr, u64 key, enum kfi_datatype datatype,
					      enum kfi_op op, void *context)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_atomic_compwritev(struct kfid_ep *ep, const struct kfi_ioc *iov,
					       void **desc, size_t count,
					       const struct kfi_ioc *comparev, void **compare_desc,
					       size_t compare_count, struct kfi_ioc *resultv,
					       void **result_desc, size_t result_count,
					       kfi_addr_t dest_addr, u64 addr, u64 key,
					       enum kfi_datatype datatype, enum kfi_op op,
					       void *context)
{
	return -ENOSYS;
}

static inline ssize_t kfi_no_atomic_compwritemsg(struct kfid_ep *ep,
						 const struct kfi_msg_atomic *msg,
						 const struct kfi_ioc *comparev,
						 void **compare_desc, size_t compare_count,
						 struct kfi_ioc *resultv, void **result_desc,
						 size_t result_count, u64 flags)
{
	return -ENOSYS;
}

static inline int kfi_no_atomic_writevalid(struct kfid_ep *ep, enum kfi_datatype datatype,
					   enum kfi_op op, size_t *count)
{
	return -ENOSYS;
}

static inline int kfi_no_atomic_readwritevalid(struct kfid_ep *ep, enum kfi_datatype datatype,
					       enum kfi_op op, size_t *count)
{
	return -ENOSYS;
}

static inline int kfi_no_atomic_compwritevalid(struct kfid_ep *ep, enum kfi_datatype datatype,
					       enum kfi_op op, size_t *count)
{
	return -ENOSYS;
}

#endif
