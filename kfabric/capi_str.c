// SPDX-License-Identifier: GPL-2.0
/* Text for values of the kfi API. */
#include <linux/export.h>
#include <linux/in.h>
#include <linux/kernel.h>
#include <linux/seq_buf.h>
#include <linux/string.h>

#include "capi.h"
#include <kfi_trigger.h>

/* Number of the buffers that kfi_tostr() uses in turn, and size of each. */
#define TEXTS		4
#define TEXT_SIZE	2048

const char *kfi_strerror(int errnum)
{
	switch (abs(errnum)) {
	case KFI_SUCCESS:	return "Success";
	case KFI_ENOENT:	return "No such object";
	case KFI_EIO:		return "Input or output failed";
	case KFI_E2BIG:		return "Too many or too long arguments";
	case KFI_EBADF:		return "Bad descriptor";
	case KFI_EAGAIN:	return "Try again";
	case KFI_ENOMEM:	return "Out of memory";
	case KFI_EACCES:	return "Permission denied";
	case KFI_EBUSY:		return "In use";
	case KFI_ENODEV:	return "No such device";
	case KFI_EINVAL:	return "Invalid argument";
	case KFI_EMFILE:	return "Too many open files";
	case KFI_ENOSPC:	return "No room left";
	case KFI_ENOSYS:	return "Not implemented";
	case KFI_ENOMSG:	return "No such message";
	case KFI_ENODATA:	return "Nothing matches";
	case KFI_EMSGSIZE:	return "Message too long";
	case KFI_ENOPROTOOPT:	return "No such option";
	case KFI_EOPNOTSUPP:	return "Not supported";
	case KFI_EADDRINUSE:	return "Address in use";
	case KFI_EADDRNOTAVAIL:	return "Address not available";
	case KFI_ENETDOWN:	return "Network is down";
	case KFI_ENETUNREACH:	return "Network is unreachable";
	case KFI_ECONNABORTED:	return "Connection aborted";
	case KFI_ECONNRESET:	return "Connection reset by the peer";
	case KFI_EISCONN:	return "Connected already";
	case KFI_ENOTCONN:	return "Not connected";
	case KFI_ESHUTDOWN:	return "Shut down";
	case KFI_ETIMEDOUT:	return "Timed out";
	case KFI_ECONNREFUSED:	return "Connection refused";
	case KFI_EHOSTUNREACH:	return "No route to the host";
	case KFI_EALREADY:	return "Under way already";
	case KFI_EINPROGRESS:	return "Under way now";
	case KFI_EREMOTEIO:	return "Input or output failed at the peer";
	case KFI_ECANCELED:	return "Cancelled";
	case KFI_EKEYREJECTED:	return "Key rejected";
	case EINTR:		return "Interrupted";
	case EEXIST:		return "Exists already";
	case EFAULT:		return "Bad address";
	case EPERM:		return "Not permitted";
	case KFI_EOTHER:	return "Unspecified error";
	case KFI_ETOOSMALL:	return "Buffer too small";
	case KFI_EOPBADSTATE:	return "Not permitted in this state";
	case KFI_EAVAIL:	return "An error is to be read";
	case KFI_EBADFLAGS:	return "Flags not supported";
	case KFI_ENOEQ:		return "No event queue";
	case KFI_EDOMAIN:	return "Wrong domain";
	case KFI_ENOCQ:		return "No completion queue";
	case KFI_ECRC:		return "Wrong checksum";
	case KFI_ETRUNC:	return "Truncated";
	case KFI_ENOKEY:	return "No key";
	case KFI_ENOAV:		return "No address vector";
	case KFI_EOVERRUN:	return "Queue overrun";
	default:		return "Unknown error";
	}
}
EXPORT_SYMBOL_GPL(kfi_strerror);

/*
 * Formats a provider's error number into @buf. Without a buffer, returns a
 * constant text.
 */
const char *kf_c_prov_error(int prov_errno, char *buf, size_t len)
{
	if (!buf || !len)
		return "provider error";
	scnprintf(buf, len, "provider error %d", prov_errno);
	return buf;
}

/*
 * Formats an address, truncated to the buffer. Sets @len to the size of the
 * whole text.
 */
const char *kf_c_straddr(const void *addr, char *buf, size_t *len)
{
	*len = snprintf(buf, *len, "%pISpc", addr) + 1;
	return buf;
}

struct word {
	u64		value;
	const char	*text;
};

#define WORD(name)	{ name, #name }

static const struct word caps[] = {
	WORD(KFI_MSG), WORD(KFI_RMA), WORD(KFI_TAGGED), WORD(KFI_ATOMIC), WORD(KFI_MULTICAST),
	WORD(KFI_TAGGED_RMA), WORD(KFI_READ), WORD(KFI_WRITE), WORD(KFI_RECV), WORD(KFI_SEND),
	WORD(KFI_REMOTE_READ), WORD(KFI_REMOTE_WRITE), WORD(KFI_MULTI_RECV),
	WORD(KFI_REMOTE_CQ_DATA), WORD(KFI_TRIGGER), WORD(KFI_FENCE),
	WORD(KFI_TAGGED_MULTI_RECV), WORD(KFI_DYNAMIC_KEYS), WORD(KFI_EP_KEYS),
	WORD(KFI_SINGLE_USE_KEYS), WORD(KFI_RMA_PMEM), WORD(KFI_SOURCE_ERR),
	WORD(KFI_LOCAL_COMM), WORD(KFI_REMOTE_COMM), WORD(KFI_SHARED_AV), WORD(KFI_RMA_EVENT),
	WORD(KFI_SOURCE), WORD(KFI_NAMED_RX_CTX), WORD(KFI_DIRECTED_RECV),
};

static const struct word op_flags[] = {
	WORD(KFI_MSG), WORD(KFI_RMA), WORD(KFI_TAGGED), WORD(KFI_ATOMIC), WORD(KFI_READ),
	WORD(KFI_WRITE), WORD(KFI_RECV), WORD(KFI_SEND), WORD(KFI_REMOTE_READ),
	WORD(KFI_REMOTE_WRITE), WORD(KFI_MULTI_RECV), WORD(KFI_REMOTE_CQ_DATA), WORD(KFI_MORE),
	WORD(KFI_PEEK), WORD(KFI_TRIGGER), WORD(KFI_FENCE), WORD(KFI_COMPLETION),
	WORD(KFI_INJECT), WORD(KFI_INJECT_COMPLETE), WORD(KFI_TRANSMIT_COMPLETE),
	WORD(KFI_DELIVERY_COMPLETE), WORD(KFI_AFFINITY), WORD(KFI_COMMIT_COMPLETE),
};

static const struct word modes[] = {
	WORD(KFI_CONTEXT), WORD(KFI_MSG_PREFIX), WORD(KFI_ASYNC_IOV), WORD(KFI_RX_CQ_DATA),
	WORD(KFI_LOCAL_MR), WORD(KFI_NOTIFY_FLAGS_ONLY), WORD(KFI_RESTRICTED_COMP),
	WORD(KFI_CONTEXT2),
};

static const struct word mr_modes[] = {
	WORD(KFI_MR_LOCAL), WORD(KFI_MR_RAW), WORD(KFI_MR_VIRT_ADDR), WORD(KFI_MR_PROV_KEY),
	WORD(KFI_MR_RMA_EVENT), WORD(KFI_MR_ENDPOINT),
};

static const struct word orders[] = {
	WORD(KFI_ORDER_RAR), WORD(KFI_ORDER_RAW), WORD(KFI_ORDER_RAS), WORD(KFI_ORDER_WAR),
	WORD(KFI_ORDER_WAW), WORD(KFI_ORDER_WAS), WORD(KFI_ORDER_SAR), WORD(KFI_ORDER_SAW),
	WORD(KFI_ORDER_SAS), WORD(KFI_ORDER_DATA),
};

static const struct word ep_types[] = {
	WORD(KFI_EP_UNSPEC), WORD(KFI_EP_MSG), WORD(KFI_EP_DGRAM), WORD(KFI_EP_RDM),
	WORD(KFI_EP_SOCK_STREAM), WORD(KFI_EP_SOCK_DGRAM),
};

static const struct word formats[] = {
	WORD(KFI_FORMAT_UNSPEC), WORD(KFI_SOCKADDR), WORD(KFI_SOCKADDR_IN),
	WORD(KFI_SOCKADDR_IN6), WORD(KFI_SOCKADDR_IB), WORD(KFI_ADDR_GNI), WORD(KFI_ADDR_CXI),
};

static const struct word protocols[] = {
	WORD(KFI_PROTO_UNSPEC), WORD(KFI_PROTO_RDMA_CM_IB_RC), WORD(KFI_PROTO_IWARP),
	WORD(KFI_PROTO_IB_UD), WORD(KFI_PROTO_UDP), WORD(KFI_PROTO_SOCK_TCP),
	WORD(KFI_PROTO_IWARP_RDM), WORD(KFI_PROTO_IB_RDM), WORD(KFI_PROTO_GNI),
	WORD(KFI_PROTO_CXI),
};

static const struct word threadings[] = {
	WORD(KFI_THREAD_UNSPEC), WORD(KFI_THREAD_SAFE), WORD(KFI_THREAD_FID),
	WORD(KFI_THREAD_DOMAIN), WORD(KFI_THREAD_COMPLETION), WORD(KFI_THREAD_ENDPOINT),
};

static const struct word progresses[] = {
	WORD(KFI_PROGRESS_UNSPEC), WORD(KFI_PROGRESS_AUTO), WORD(KFI_PROGRESS_MANUAL),
};

static const struct word av_types[] = {
	WORD(KFI_AV_UNSPEC), WORD(KFI_AV_MAP), WORD(KFI_AV_TABLE),
};

static const struct word events[] = {
	WORD(KFI_NOTIFY), WORD(KFI_CONNREQ), WORD(KFI_CONNECTED), WORD(KFI_SHUTDOWN),
	WORD(KFI_MR_COMPLETE), WORD(KFI_AV_COMPLETE), WORD(KFI_JOIN_COMPLETE),
};

static const struct word datatypes[] = {
	WORD(KFI_INT8), WORD(KFI_UINT8), WORD(KFI_INT16), WORD(KFI_UINT16), WORD(KFI_INT32),
	WORD(KFI_UINT32), WORD(KFI_INT64), WORD(KFI_UINT64), WORD(KFI_FLOAT), WORD(KFI_DOUBLE),
	WORD(KFI_FLOAT_COMPLEX), WORD(KFI_DOUBLE_COMPLEX), WORD(KFI_LONG_DOUBLE),
	WORD(KFI_LONG_DOUBLE_COMPLEX),
};

static const struct word atomic_ops[] = {
	WORD(KFI_MIN), WORD(KFI_MAX), WORD(KFI_SUM), WORD(KFI_PROD), WORD(KFI_LOR),
	WORD(KFI_LAND), WORD(KFI_BOR), WORD(KFI_BAND), WORD(KFI_LXOR), WORD(KFI_BXOR),
	WORD(KFI_ATOMIC_READ), WORD(KFI_ATOMIC_WRITE), WORD(KFI_CSWAP), WORD(KFI_CSWAP_NE),
	WORD(KFI_CSWAP_LE), WORD(KFI_CSWAP_LT), WORD(KFI_CSWAP_GE), WORD(KFI_CSWAP_GT),
	WORD(KFI_MSWAP),
};

static const struct word op_types[] = {
	WORD(KFI_OP_RECV), WORD(KFI_OP_SEND), WORD(KFI_OP_TRECV), WORD(KFI_OP_TSEND),
	WORD(KFI_OP_READ), WORD(KFI_OP_WRITE), WORD(KFI_OP_ATOMIC), WORD(KFI_OP_FETCH_ATOMIC),
	WORD(KFI_OP_COMPARE_ATOMIC), WORD(KFI_OP_CNTR_SET), WORD(KFI_OP_CNTR_ADD),
};

/* Appends the name of a value, or its number if the list has no name for it. */
static void put_one(struct seq_buf *s, const struct word *words, size_t count, u64 value)
{
	size_t i;

	for (i = 0; i < count; i++) {
		if (words[i].value == value) {
			seq_buf_puts(s, words[i].text);
			return;
		}
	}
	seq_buf_printf(s, "%llu", value);
}

/* Appends the names of all set bits, and a number for bits without a name. */
static void put_bits(struct seq_buf *s, const struct word *words, size_t count, u64 value)
{
	const char *between = "";
	size_t i;

	for (i = 0; i < count; i++) {
		if (value & words[i].value) {
			seq_buf_printf(s, "%s%s", between, words[i].text);
			value &= ~words[i].value;
			between = ", ";
		}
	}
	if (value || !*between)
		seq_buf_printf(s, "%s%#llx", between, value);
}

#define ONE(s, words, value)	put_one(s, words, ARRAY_SIZE(words), value)
#define BITS(s, words, value)	put_bits(s, words, ARRAY_SIZE(words), value)

#define LINE(s, indent, label, put, words, value) \
	do { \
		seq_buf_printf(s, "%*s" label ": ", indent, ""); \
		put(s, words, value); \
		seq_buf_putc(s, '\n'); \
	} while (0)

static void put_tx(struct seq_buf *s, int in, const struct kfi_tx_attr *tx)
{
	seq_buf_printf(s, "%*skfi_tx_attr:\n", in, "");
	in += 2;
	LINE(s, in, "caps", BITS, caps, tx->caps);
	LINE(s, in, "op_flags", BITS, op_flags, tx->op_flags);
	LINE(s, in, "msg_order", BITS, orders, tx->msg_order);
	LINE(s, in, "comp_order", BITS, orders, tx->comp_order);
	seq_buf_printf(s, "%*sinject_size: %zu, size: %zu, iov_limit: %zu, rma_iov_limit: %zu\n",
		       in, "", tx->inject_size, tx->size, tx->iov_limit, tx->rma_iov_limit);
}

static void put_rx(struct seq_buf *s, int in, const struct kfi_rx_attr *rx)
{
	seq_buf_printf(s, "%*skfi_rx_attr:\n", in, "");
	in += 2;
	LINE(s, in, "caps", BITS, caps, rx->caps);
	LINE(s, in, "op_flags", BITS, op_flags, rx->op_flags);
	LINE(s, in, "msg_order", BITS, orders, rx->msg_order);
	LINE(s, in, "comp_order", BITS, orders, rx->comp_order);
	seq_buf_printf(s, "%*ssize: %zu, iov_limit: %zu\n", in, "", rx->size, rx->iov_limit);
}

static void put_ep(struct seq_buf *s, int in, const struct kfi_ep_attr *ep)
{
	seq_buf_printf(s, "%*skfi_ep_attr:\n", in, "");
	in += 2;
	LINE(s, in, "type", ONE, ep_types, ep->type);
	LINE(s, in, "protocol", ONE, protocols, ep->protocol);
	seq_buf_printf(s, "%*smax_msg_size: %zu, tx_ctx_cnt: %zu, rx_ctx_cnt: %zu\n", in, "",
		       ep->max_msg_size, ep->tx_ctx_cnt, ep->rx_ctx_cnt);
}

static void put_domain(struct seq_buf *s, int in, const struct kfi_domain_attr *domain)
{
	seq_buf_printf(s, "%*skfi_domain_attr:\n", in, "");
	in += 2;
	seq_buf_printf(s, "%*sname: %s\n", in, "", domain->name ?: "(none)");
	LINE(s, in, "threading", ONE, threadings, domain->threading);
	LINE(s, in, "control_progress", ONE, progresses, domain->control_progress);
	LINE(s, in, "data_progress", ONE, progresses, domain->data_progress);
	LINE(s, in, "mr_mode", BITS, mr_modes, domain->mr_mode);
	seq_buf_printf(s, "%*smr_key_size: %zu, cq_data_size: %zu\n", in, "",
		       domain->mr_key_size, domain->cq_data_size);
}

static void put_fabric(struct seq_buf *s, int in, const struct kfi_fabric_attr *fabric)
{
	seq_buf_printf(s, "%*skfi_fabric_attr:\n", in, "");
	in += 2;
	seq_buf_printf(s, "%*sname: %s, prov_name: %s, prov_version: %u.%u, api_version: %u.%u\n",
		       in, "", fabric->name ?: "(none)", fabric->prov_name ?: "(none)",
		       KFI_MAJOR(fabric->prov_version), KFI_MINOR(fabric->prov_version),
		       KFI_MAJOR(fabric->api_version), KFI_MINOR(fabric->api_version));
}

static void put_info(struct seq_buf *s, const struct kfi_info *info)
{
	seq_buf_puts(s, "kfi_info:\n");
	LINE(s, 2, "caps", BITS, caps, info->caps);
	LINE(s, 2, "mode", BITS, modes, info->mode);
	LINE(s, 2, "addr_format", ONE, formats, info->addr_format);
	if (info->src_addr && info->src_addrlen >= sizeof(struct sockaddr_in))
		seq_buf_printf(s, "  src_addr: %pISpc\n", info->src_addr);
	if (info->dest_addr && info->dest_addrlen >= sizeof(struct sockaddr_in))
		seq_buf_printf(s, "  dest_addr: %pISpc\n", info->dest_addr);
	if (info->tx_attr)
		put_tx(s, 2, info->tx_attr);
	if (info->rx_attr)
		put_rx(s, 2, info->rx_attr);
	if (info->ep_attr)
		put_ep(s, 2, info->ep_attr);
	if (info->domain_attr)
		put_domain(s, 2, info->domain_attr);
	if (info->fabric_attr)
		put_fabric(s, 2, info->fabric_attr);
}

char *kfi_tostr(const void *data, enum kfi_type datatype)
{
	static char texts[TEXTS][TEXT_SIZE];
	static atomic_t turn;
	char *text = texts[(unsigned int)atomic_inc_return(&turn) % TEXTS];
	struct seq_buf s;

	seq_buf_init(&s, text, TEXT_SIZE);
	switch (data ? datatype : -1) {
	case KFI_TYPE_INFO:
		put_info(&s, data);
		break;
	case KFI_TYPE_TX_ATTR:
		put_tx(&s, 0, data);
		break;
	case KFI_TYPE_RX_ATTR:
		put_rx(&s, 0, data);
		break;
	case KFI_TYPE_EP_ATTR:
		put_ep(&s, 0, data);
		break;
	case KFI_TYPE_DOMAIN_ATTR:
		put_domain(&s, 0, data);
		break;
	case KFI_TYPE_FABRIC_ATTR:
		put_fabric(&s, 0, data);
		break;
	case KFI_TYPE_CAPS:
		BITS(&s, caps, *(const u64 *)data);
		break;
	case KFI_TYPE_OP_FLAGS:
	case KFI_TYPE_CQ_EVENT_FLAGS:
		BITS(&s, op_flags, *(const u64 *)data);
		break;
	case KFI_TYPE_MODE:
		BITS(&s, modes, *(const u64 *)data);
		break;
	case KFI_TYPE_MSG_ORDER:
		BITS(&s, orders, *(const u64 *)data);
		break;
	case KFI_TYPE_MR_MODE:
		BITS(&s, mr_modes, *(const int *)data);
		break;
	case KFI_TYPE_EP_TYPE:
		ONE(&s, ep_types, *(const u32 *)data);
		break;
	case KFI_TYPE_ADDR_FORMAT:
		ONE(&s, formats, *(const u32 *)data);
		break;
	case KFI_TYPE_PROTOCOL:
		ONE(&s, protocols, *(const u32 *)data);
		break;
	case KFI_TYPE_THREADING:
		ONE(&s, threadings, *(const u32 *)data);
		break;
	case KFI_TYPE_PROGRESS:
		ONE(&s, progresses, *(const u32 *)data);
		break;
	case KFI_TYPE_AV_TYPE:
		ONE(&s, av_types, *(const u32 *)data);
		break;
	case KFI_TYPE_ATOMIC_TYPE:
		ONE(&s, datatypes, *(const u32 *)data);
		break;
	case KFI_TYPE_ATOMIC_OP:
		ONE(&s, atomic_ops, *(const u32 *)data);
		break;
	case KFI_TYPE_EQ_EVENT:
		ONE(&s, events, *(const u32 *)data);
		break;
	case KFI_TYPE_OP_TYPE:
		ONE(&s, op_types, *(const u32 *)data);
		break;
	case KFI_TYPE_VERSION:
		seq_buf_printf(&s, "%u.%u", KFI_MAJOR(*(const u32 *)data),
			       KFI_MINOR(*(const u32 *)data));
		break;
	default:
		seq_buf_puts(&s, "?");
	}
	return (char *)seq_buf_str(&s);
}
EXPORT_SYMBOL_GPL(kfi_tostr);
