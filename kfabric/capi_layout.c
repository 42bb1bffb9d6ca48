// SPDX-License-Identifier: GPL-2.0
/*
 * The C compiler's sizes and offsets of the kfi API's structures. This file is
 * compiled to assembly only. Kbuild makes constants from it, which
 * src/capi/raw.rs compares with those of bindgen.
 */
#include <linux/bvec.h>
#include <linux/kbuild.h>
#include <linux/uio.h>

#include "capi.h"

#define SIZE(sym, type) DEFINE(SIZEOF_##sym, sizeof(type))
#define AT(sym, type, field) DEFINE(OFFSET_##sym, offsetof(type, field))

int main(void)
{
	SIZE(KFID, struct kfid);
	AT(KFID_COMP, struct kfid, comp);
	AT(KFID_REF_CNT, struct kfid, ref_cnt);
	SIZE(INFO, struct kfi_info);
	AT(INFO_HANDLE, struct kfi_info, handle);
	SIZE(TX_ATTR, struct kfi_tx_attr);
	SIZE(RX_ATTR, struct kfi_rx_attr);
	SIZE(EP_ATTR, struct kfi_ep_attr);
	SIZE(DOMAIN_ATTR, struct kfi_domain_attr);
	AT(DOMAIN_ATTR_MR_MODE, struct kfi_domain_attr, mr_mode);
	SIZE(FABRIC_ATTR, struct kfi_fabric_attr);
	SIZE(FABRIC, struct kfid_fabric);
	SIZE(DOMAIN, struct kfid_domain);
	SIZE(EP, struct kfid_ep);
	SIZE(PEP, struct kfid_pep);
	SIZE(EQ, struct kfid_eq);
	SIZE(CQ, struct kfid_cq);
	SIZE(CNTR, struct kfid_cntr);
	SIZE(MR, struct kfid_mr);
	AT(MR_KEY, struct kfid_mr, key);
	SIZE(KEY, struct kfid_key);
	SIZE(DAX, struct kfid_dax);
	AT(DAX_SIZE, struct kfid_dax, size);
	SIZE(DAX_RANGE, struct kfi_dax_range);
	AT(DAX_RANGE_LEN, struct kfi_dax_range, len);
	SIZE(EQ_ATTR, struct kfi_eq_attr);
	SIZE(CQ_ATTR, struct kfi_cq_attr);
	SIZE(CNTR_ATTR, struct kfi_cntr_attr);
	SIZE(MR_ATTR, struct kfi_mr_attr);
	SIZE(MSG, struct kfi_msg);
	SIZE(MSG_RMA, struct kfi_msg_rma);
	AT(MSG_RMA_RMA_IOV, struct kfi_msg_rma, rma_iov);
	SIZE(RMA_IOV, struct kfi_rma_iov);
	SIZE(IOC, struct kfi_ioc);
	SIZE(RMA_IOC, struct kfi_rma_ioc);
	SIZE(ATOMIC_ATTR, struct kfi_atomic_attr);
	SIZE(MSG_ATOMIC, struct kfi_msg_atomic);
	AT(MSG_ATOMIC_DATATYPE, struct kfi_msg_atomic, datatype);
	SIZE(EQ_CM_ENTRY, struct kfi_eq_cm_entry);
	SIZE(EQ_ERR_ENTRY, struct kfi_eq_err_entry);
	SIZE(CQ_DATA_ENTRY, struct kfi_cq_data_entry);
	SIZE(CQ_TAGGED_ENTRY, struct kfi_cq_tagged_entry);
	SIZE(CQ_ERR_ENTRY, struct kfi_cq_err_entry);
	SIZE(OPS, struct kfi_ops);
	SIZE(OPS_FABRIC, struct kfi_ops_fabric);
	SIZE(OPS_DOMAIN, struct kfi_ops_domain);
	SIZE(OPS_MR, struct kfi_ops_mr);
	SIZE(OPS_EP, struct kfi_ops_ep);
	SIZE(OPS_CM, struct kfi_ops_cm);
	SIZE(OPS_MSG, struct kfi_ops_msg);
	SIZE(OPS_RMA, struct kfi_ops_rma);
	SIZE(OPS_ATOMIC, struct kfi_ops_atomic);
	SIZE(OPS_EQ, struct kfi_ops_eq);
	SIZE(OPS_CQ, struct kfi_ops_cq);
	SIZE(OPS_CNTR, struct kfi_ops_cntr);
	SIZE(OPS_KEY, struct kfi_ops_key);
	SIZE(PROVIDER, struct kfi_provider);
	AT(PROVIDER_REF_CNT, struct kfi_provider, ref_cnt);
	SIZE(KEY_ASSIGNMENT, struct kfi_key_assignment);
	SIZE(KEY_ALLOC, struct kfi_key_alloc);
	SIZE(GRANT_ATTR, struct kfi_grant_attr);
	AT(GRANT_ATTR_LIFETIME_MS, struct kfi_grant_attr, lifetime_ms);
	SIZE(AV, struct kfid_av);
	SIZE(AV_ATTR, struct kfi_av_attr);
	SIZE(OPS_AV, struct kfi_ops_av);
	SIZE(KVEC, struct kvec);
	SIZE(BIO_VEC, struct bio_vec);
	return 0;
}
