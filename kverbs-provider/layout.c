// SPDX-License-Identifier: GPL-2.0
/*
 * Sizes and offsets by the C compiler. Compiled to assembly only; Kbuild converts the assembly into
 * constants, which src/ib/raw.rs compares with the sizes that bindgen found in the same headers.
 */
#include <linux/kbuild.h>

#include "helpers.h"

#define SIZE(sym, type) DEFINE(SIZEOF_##sym, sizeof(type))
#define AT(sym, type, field) DEFINE(OFFSET_##sym, offsetof(type, field))

int main(void)
{
	SIZE(IB_DEVICE, struct ib_device);
	SIZE(IB_DEVICE_ATTR, struct ib_device_attr);
	SIZE(IB_PORT_ATTR, struct ib_port_attr);
	SIZE(IB_PD, struct ib_pd);
	SIZE(IB_CQ, struct ib_cq);
	SIZE(IB_CQE, struct ib_cqe);
	SIZE(IB_QP, struct ib_qp);
	SIZE(IB_MR, struct ib_mr);
	SIZE(IB_WC, struct ib_wc);
	SIZE(IB_SGE, struct ib_sge);
	SIZE(IB_SEND_WR, struct ib_send_wr);
	SIZE(IB_RDMA_WR, struct ib_rdma_wr);
	SIZE(IB_REG_WR, struct ib_reg_wr);
	SIZE(IB_RECV_WR, struct ib_recv_wr);
	SIZE(IB_QP_INIT_ATTR, struct ib_qp_init_attr);
	SIZE(IB_QP_ATTR, struct ib_qp_attr);
	SIZE(IB_CLIENT, struct ib_client);
	SIZE(IB_EVENT, struct ib_event);
	SIZE(RDMA_CM_ID, struct rdma_cm_id);
	SIZE(RDMA_CM_EVENT, struct rdma_cm_event);
	SIZE(RDMA_CONN_PARAM, struct rdma_conn_param);
	SIZE(KVERBS_GID, struct kverbs_gid);
	SIZE(KVERBS_IPOIB_ADDR, struct kverbs_ipoib_addr);
	AT(KVERBS_GID_TYPE, struct kverbs_gid, type);
	AT(KVERBS_GID_IFINDEX, struct kverbs_gid, ifindex);
	AT(KVERBS_IPOIB_ADDR_ADDR, struct kverbs_ipoib_addr, addr);
	AT(IB_DEVICE_ATTRS, struct ib_device, attrs);
	AT(IB_DEVICE_PHYS_PORT_CNT, struct ib_device, phys_port_cnt);
	AT(IB_PD_LOCAL_DMA_LKEY, struct ib_pd, local_dma_lkey);
	AT(IB_QP_QP_NUM, struct ib_qp, qp_num);
	AT(IB_MR_RKEY, struct ib_mr, rkey);
	AT(IB_MR_IOVA, struct ib_mr, iova);
	AT(IB_WC_STATUS, struct ib_wc, status);
	AT(IB_WC_BYTE_LEN, struct ib_wc, byte_len);
	AT(IB_WC_EX, struct ib_wc, ex);
	AT(IB_WC_WC_FLAGS, struct ib_wc, wc_flags);
	AT(IB_SEND_WR_OPCODE, struct ib_send_wr, opcode);
	AT(IB_SEND_WR_EX, struct ib_send_wr, ex);
	AT(RDMA_CM_ID_CONTEXT, struct rdma_cm_id, context);
	AT(RDMA_CM_ID_EVENT_HANDLER, struct rdma_cm_id, event_handler);
	AT(RDMA_CM_ID_ROUTE, struct rdma_cm_id, route);
	AT(RDMA_CM_ID_PORT_NUM, struct rdma_cm_id, port_num);
	AT(RDMA_CM_EVENT_STATUS, struct rdma_cm_event, status);
	AT(RDMA_CM_EVENT_PARAM, struct rdma_cm_event, param);
	return 0;
}
