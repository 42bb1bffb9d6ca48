// SPDX-License-Identifier: GPL-2.0
/*
 * Inline functions and macros of the RDMA headers for the Rust side. See helpers.h.
 */
#include <linux/atomic.h>
#include <linux/capability.h>
#include <linux/cgroup_rdma.h>
#include <linux/cpumask.h>
#include <linux/cred.h>
#include <linux/dma-map-ops.h>
#include <linux/if_arp.h>
#include <linux/inetdevice.h>
#include <linux/kcov.h>
#include <linux/libnvdimm.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/preempt.h>
#include <linux/random.h>
#include <linux/scatterlist.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/swiotlb.h>
#include <linux/sysfs.h>
#include <linux/user_namespace.h>
#include <linux/workqueue.h>
#include <net/addrconf.h>
#include <net/ip6_route.h>
#include <net/route.h>
#include <rdma/ib_addr.h>

#include "helpers.h"

void kverbs_device_get(struct ib_device *dev)
{
	get_device(&dev->dev);
}

void kverbs_device_put(struct ib_device *dev)
{
	put_device(&dev->dev);
}

/*
 * Not dev_name(): a rename frees its string. This array is in the structure and always ends with a
 * NUL. A read during a rename returns at worst a name that no device has.
 */
void kverbs_device_name(struct ib_device *dev, char *name, unsigned int size)
{
	strscpy_pad(name, dev->name, size);
}

#define SAY(dev, format, ...)                                                                      \
	pr_err_ratelimited("kverbs: %.*s: " format "\n", (int)sizeof((dev)->name), (dev)->name,     \
			   ##__VA_ARGS__)

void kverbs_say(struct ib_device *dev, enum kverbs_trouble kind, int err)
{
	switch (kind) {
	case KVERBS_TROUBLE_BOUNCES:
		SAY(dev, "not used, because its DMA bounces or is not coherent");
		break;
	case KVERBS_TROUBLE_IWARP:
		SAY(dev, "not used: iWARP keeps fewer promises (parameter iwarp, see kverbs(7))");
		break;
	case KVERBS_TROUBLE_REVOKE:
		SAY(dev, "a key was not revoked (errno %d): the connections that could use it end",
		    -err);
		break;
	case KVERBS_TROUBLE_DEREGISTER:
		SAY(dev, "memory was not deregistered (errno %d): it stays pinned until a later try",
		    -err);
		break;
	case KVERBS_TROUBLE_LOST:
		SAY(dev, "memory was not deregistered before the removal: it stays pinned for ever");
		break;
	}
}

void *kverbs_client_data(struct ib_device *dev, struct ib_client *client)
{
	return ib_get_client_data(dev, client);
}

/*
 * The DMA layer copies between bounce buffers and memory only when memory is mapped and unmapped.
 * It does not copy when the device has moved data.
 */
bool kverbs_bounces(struct ib_device *dev)
{
	if (ib_uses_virt_dma(dev))
		return false;
	return dev->cc_dma_bounce || is_swiotlb_force_bounce(dev->dma_device) ||
	       !dev_is_dma_coherent(dev->dma_device);
}

static bool iwarp;
module_param(iwarp, bool, 0644);
MODULE_PARM_DESC(iwarp, "use iWARP devices, on which keys keep fewer promises");

static bool commit = true;
module_param(commit, bool, 0644);
MODULE_PARM_DESC(commit, "make writes of peers to persistent memory durable, by a listener for rdma_cm");

bool kverbs_commits(void)
{
	return READ_ONCE(commit);
}

bool kverbs_is_rc_capable(struct ib_device *dev, u32 port)
{
	return rdma_cap_ib_cm(dev, port) || (READ_ONCE(iwarp) && rdma_cap_iw_cm(dev, port));
}

bool kverbs_is_iwarp(struct ib_device *dev)
{
	return rdma_protocol_iwarp(dev, 1);
}

enum kverbs_link kverbs_port_link(struct ib_device *dev, u32 port)
{
	if (rdma_protocol_ib(dev, port))
		return KVERBS_LINK_IB;
	if (rdma_protocol_roce_udp_encap(dev, port))
		return KVERBS_LINK_ROCE_V2;
	if (rdma_protocol_roce_eth_encap(dev, port))
		return KVERBS_LINK_ROCE_V1;
	if (rdma_protocol_iwarp(dev, port))
		return KVERBS_LINK_IWARP;
	return KVERBS_LINK_OTHER;
}

int kverbs_read_gid(struct ib_device *dev, u32 port, int index, struct net *net,
		    struct kverbs_gid *out)
{
	const struct ib_gid_attr *attr;
	struct net_device *ndev;

	if (index >= dev->port_data[port].immutable.gid_tbl_len)
		return -ERANGE;
	attr = rdma_get_gid_attr(dev, port, index);
	if (IS_ERR(attr))
		return -ENOENT;
	memcpy(out->gid, attr->gid.raw, sizeof(out->gid));
	out->type = attr->gid_type;
	out->ifindex = 0;
	rcu_read_lock();
	ndev = rdma_read_gid_attr_ndev_rcu(attr);
	if (!IS_ERR(ndev) && net_eq(dev_net(ndev), net))
		out->ifindex = ndev->ifindex;
	rcu_read_unlock();
	rdma_put_gid_attr(attr);
	return 0;
}

/* Adds an address of an interface to a list, if the list has room. */
static void add_addr(struct kverbs_ipoib_addr *out, u32 max, u32 *n, const struct net_device *ndev,
		     const void *addr, size_t size)
{
	if (*n < max) {
		memset(&out[*n], 0, sizeof(out[*n]));
		/* Four bytes of queue pair number and flags precede the GID (RFC 4391). */
		if (ndev->type == ARPHRD_INFINIBAND)
			memcpy(out[*n].gid, ndev->dev_addr + 4, sizeof(out[*n].gid));
		memcpy(&out[*n].addr, addr, size);
	}
	++*n;
}

static void add_v4(struct kverbs_ipoib_addr *out, u32 max, u32 *n, const struct net_device *ndev)
{
	struct in_device *in = __in_dev_get_rcu(ndev);
	const struct in_ifaddr *ifa;

	if (!in)
		return;
	in_dev_for_each_ifa_rcu(ifa, in) {
		struct sockaddr_in sin = {
			.sin_family = AF_INET,
			.sin_addr.s_addr = ifa->ifa_local,
		};

		add_addr(out, max, n, ndev, &sin, sizeof(sin));
	}
}

static void add_v6(struct kverbs_ipoib_addr *out, u32 max, u32 *n, const struct net_device *ndev)
{
#if IS_ENABLED(CONFIG_IPV6)
	struct inet6_dev *in6 = __in6_dev_get(ndev);
	const struct inet6_ifaddr *ifp;

	if (!in6)
		return;
	list_for_each_entry_rcu(ifp, &in6->addr_list, if_list) {
		struct sockaddr_in6 sin6 = {
			.sin6_family = AF_INET6,
			.sin6_addr = ifp->addr,
		};

		if (ifp->flags & IFA_F_TENTATIVE)
			continue;
		if (ipv6_addr_type(&ifp->addr) & IPV6_ADDR_LINKLOCAL)
			sin6.sin6_scope_id = ndev->ifindex;
		add_addr(out, max, n, ndev, &sin6, sizeof(sin6));
	}
#endif
}

u32 kverbs_ipoib_addrs(struct net *net, struct kverbs_ipoib_addr *out, u32 max)
{
	struct net_device *ndev;
	u32 n = 0;

	rcu_read_lock();
	for_each_netdev_rcu(net, ndev) {
		if (ndev->type != ARPHRD_INFINIBAND || !(ndev->flags & IFF_UP))
			continue;
		add_v4(out, max, &n, ndev);
		add_v6(out, max, &n, ndev);
	}
	rcu_read_unlock();
	return n;
}

u32 kverbs_port_addrs(struct ib_device *dev, u32 port, struct net *net,
		      struct kverbs_ipoib_addr *out, u32 max)
{
	struct net_device *ndev = ib_device_get_netdev(dev, port);
	u32 n = 0;

	if (!ndev)
		return 0;
	rcu_read_lock();
	if (net_eq(dev_net(ndev), net) && ndev->flags & IFF_UP) {
		add_v4(out, max, &n, ndev);
		add_v6(out, max, &n, ndev);
	}
	rcu_read_unlock();
	dev_put(ndev);
	return n;
}

struct net *kverbs_port_addr(struct ib_device *dev, u32 port, struct sockaddr_storage *addr)
{
	struct net_device *ndev = ib_device_get_netdev(dev, port);
	struct kverbs_ipoib_addr first;
	struct net *net;

	if (!ndev)
		return ERR_PTR(-ENODEV);
	net = get_net(dev_net(ndev));
	dev_put(ndev);
	if (!kverbs_port_addrs(dev, port, net, &first, 1)) {
		put_net(net);
		return ERR_PTR(-EADDRNOTAVAIL);
	}
	*addr = first.addr;
	return net;
}

/*
 * The connection manager connects a queue pair by the path's GIDs. The addresses in a request's
 * private data are only a claim of its sender. A second path would escape the check.
 */
int kverbs_path_gids(const struct rdma_cm_id *id, u8 *local, u8 *peer)
{
	const struct rdma_route *route = &id->route;

	/* iWARP's messages and data share one TCP connection, between the addresses. */
	if (rdma_protocol_iwarp(id->device, id->port_num)) {
		memset(local, 0, sizeof(route->path_rec->sgid.raw));
		memset(peer, 0, sizeof(route->path_rec->dgid.raw));
		return 0;
	}
	if (!route->path_rec || route->num_pri_alt_paths != 1)
		return -ENOTCONN;
	memcpy(local, route->path_rec->sgid.raw, sizeof(route->path_rec->sgid.raw));
	memcpy(peer, route->path_rec->dgid.raw, sizeof(route->path_rec->dgid.raw));
	return 0;
}

int kverbs_route_source(struct net *net, const struct sockaddr_storage *dst,
			struct sockaddr_storage *src)
{
	memset(src, 0, sizeof(*src));
	if (dst->ss_family == AF_INET) {
		const struct sockaddr_in *to = (const struct sockaddr_in *)dst;
		struct sockaddr_in *from = (struct sockaddr_in *)src;
		struct flowi4 fl4 = { .daddr = to->sin_addr.s_addr };
		struct rtable *rt = ip_route_output_key(net, &fl4);

		if (IS_ERR(rt))
			return PTR_ERR(rt);
		ip_rt_put(rt);
		from->sin_family = AF_INET;
		from->sin_addr.s_addr = fl4.saddr;
		return 0;
	}
#if IS_ENABLED(CONFIG_IPV6)
	if (dst->ss_family == AF_INET6) {
		const struct sockaddr_in6 *to = (const struct sockaddr_in6 *)dst;
		struct sockaddr_in6 *from = (struct sockaddr_in6 *)src;
		struct flowi6 fl6 = {
			.daddr = to->sin6_addr,
			.flowi6_oif = to->sin6_scope_id,
		};
		struct dst_entry *entry = ip6_dst_lookup_flow(net, NULL, &fl6, NULL);

		if (IS_ERR(entry))
			return PTR_ERR(entry);
		dst_release(entry);
		from->sin6_family = AF_INET6;
		from->sin6_addr = fl6.saddr;
		return 0;
	}
#endif
	return -EAFNOSUPPORT;
}

#ifdef CONFIG_CGROUP_RDMA
static enum rdmacg_resource_type resource(bool handle)
{
	return handle ? RDMACG_RESOURCE_HCA_HANDLE : RDMACG_RESOURCE_HCA_OBJECT;
}

int kverbs_cg_charge(struct ib_device *dev, bool handle, void **cg)
{
	struct rdma_cgroup *found = NULL;
	int ret = rdmacg_try_charge(&found, &dev->cg_device, resource(handle));

	*cg = found;
	return ret;
}

void kverbs_cg_uncharge(struct ib_device *dev, bool handle, void *cg)
{
	rdmacg_uncharge(cg, &dev->cg_device, resource(handle));
}
#else
int kverbs_cg_charge(struct ib_device *dev, bool handle, void **cg)
{
	*cg = NULL;
	return 0;
}

void kverbs_cg_uncharge(struct ib_device *dev, bool handle, void *cg)
{
}
#endif

static unsigned int user_mib;

static u64 user_limit(void)
{
	u64 mib = READ_ONCE(user_mib);

	return mib ? mib << 20 : (u64)totalram_pages() << PAGE_SHIFT >> 2;
}

static int user_mib_get(char *buf, const struct kernel_param *kp)
{
	return sysfs_emit(buf, "%llu\n", user_limit() >> 20);
}

static const struct kernel_param_ops user_mib_ops = {
	.set = param_set_uint,
	.get = user_mib_get,
};

module_param_cb(user_mib, &user_mib_ops, &user_mib, 0644);
MODULE_PARM_DESC(user_mib, "MiB that devices may allocate for a user's objects, about; 0: a quarter of memory");

static unsigned int key_rest_s = 600;
module_param(key_rest_s, uint, 0644);
MODULE_PARM_DESC(key_rest_s, "seconds after the end of a key before its value may be used again");

u32 kverbs_key_rest(void)
{
	return READ_ONCE(key_rest_s);
}

static unsigned int resting_regions = 32768;
module_param(resting_regions, uint, 0644);
MODULE_PARM_DESC(resting_regions, "memory regions of a device that may rest until their key values may be used again");

u32 kverbs_resting_regions(void)
{
	return READ_ONCE(resting_regions);
}

static const char * const policies[] = {
	[KVERBS_REVOKE_AUTO] = "auto",
	[KVERBS_REVOKE_DEREGISTER] = "deregister",
	[KVERBS_REVOKE_INVALIDATE] = "invalidate",
};

static unsigned int revoke = KVERBS_REVOKE_AUTO;

static int revoke_set(const char *val, const struct kernel_param *kp)
{
	int at = sysfs_match_string(policies, val);

	if (at < 0)
		return at;
	if (at == KVERBS_REVOKE_INVALIDATE)
		pr_notice("revoke=invalidate: with drivers whose invalidation is no fence, peers can write memory that was freed\n");
	WRITE_ONCE(revoke, at);
	return 0;
}

static int revoke_get(char *buf, const struct kernel_param *kp)
{
	return sysfs_emit(buf, "%s\n", policies[READ_ONCE(revoke)]);
}

static const struct kernel_param_ops revoke_ops = {
	.set = revoke_set,
	.get = revoke_get,
};

module_param_cb(revoke, &revoke_ops, NULL, 0644);
MODULE_PARM_DESC(revoke, "how keys are revoked: auto, by the policy of the driver; deregister; invalidate");

u32 kverbs_revoke(void)
{
	return READ_ONCE(revoke);
}

u32 kverbs_driver(struct ib_device *dev)
{
	return dev->ops.driver_id;
}

static unsigned int as_driver;
module_param_unsafe(as_driver, uint, 0600);
MODULE_PARM_DESC(as_driver, "for tests: treat keys on software devices by the policies for another driver (enum rdma_driver_id); 0: each device's own");

u32 kverbs_policy_driver(struct ib_device *dev)
{
	u32 driver = READ_ONCE(as_driver);

	/* Hardware is never treated as another driver's. */
	return driver && ib_uses_virt_dma(dev) ? driver : dev->ops.driver_id;
}

u32 kverbs_seconds(void)
{
	return (u32)ktime_get_seconds();
}

u64 kverbs_user_limit(void)
{
	/* No audit record: a task without the capability is not refused. */
	return ns_capable_noaudit(&init_user_ns, CAP_SYS_RESOURCE) ? U64_MAX : user_limit();
}

int kverbs_post_send(struct ib_qp *qp, const struct ib_send_wr *wr,
		     const struct ib_send_wr **bad)
{
	return ib_post_send(qp, wr, bad);
}

int kverbs_post_recv(struct ib_qp *qp, const struct ib_recv_wr *wr,
		     const struct ib_recv_wr **bad)
{
	return ib_post_recv(qp, wr, bad);
}

int kverbs_poll_cq(struct ib_cq *cq, int n, struct ib_wc *wc)
{
	return ib_poll_cq(cq, n, wc);
}

int kverbs_req_notify_cq(struct ib_cq *cq)
{
	return ib_req_notify_cq(cq, IB_CQ_NEXT_COMP | IB_CQ_REPORT_MISSED_EVENTS);
}

struct ib_cq *kverbs_create_cq(struct ib_device *dev, ib_comp_handler handler, void *context,
			       int cqe)
{
	static atomic_t last;
	struct ib_cq_init_attr attr = { .cqe = cqe };

	/* Spreads the interrupts of the queues, as __ib_alloc_cq_any() does. */
	if (dev->num_comp_vectors > 1)
		attr.comp_vector = (u32)atomic_inc_return(&last) %
				   min_t(u32, dev->num_comp_vectors, num_online_cpus());
	return ib_create_cq(dev, handler, NULL, context, &attr);
}

bool kverbs_destroy_cq(struct ib_cq *cq)
{
	int ret = ib_destroy_cq_user(cq, NULL);

	if (ret) {
		SAY(cq->device, "a completion queue was not destroyed (errno %d): it stays for ever",
		    -ret);
		/* The driver may call the queue's handler at any time. */
		__module_get(THIS_MODULE);
	}
	return !ret;
}

/* Maximum moves to RESET until one holds. Each further move needs a failure of the one before. */
#define RESETS 16

/*
 * Moves a queue pair to RESET for good.
 *
 * After an error, a pass of an rxe task sets the state to ERR without a check of the old state.
 * rxe_requester() does so for each request that it flushes, and both tasks for errors of the
 * peer. A pass that began earlier can thus undo the move, and the queue pair accepts packets
 * again. The move waits until no pass runs, and a pass that begins in RESET sets no state.
 * Therefore, a state that is RESET afterwards stays.
 */
static void reset(struct ib_qp *qp)
{
	struct ib_qp_init_attr init = {};
	struct ib_qp_attr attr = {};
	int left = RESETS;

	do {
		attr.qp_state = IB_QPS_RESET;
		ib_modify_qp(qp, &attr, IB_QP_STATE);
		if (ib_query_qp(qp, &attr, IB_QP_STATE, &init))
			break;
	} while (attr.qp_state != IB_QPS_RESET && --left);
}

/*
 * Makes a drained queue pair refuse packets. Waits for packets that rxe is just queueing to it.
 *
 * The rxe driver queues a packet first and wakes the queue pair's task afterwards. If a peer still
 * sent while the queue pair is destroyed, rxe would warn (rxe_sched_task() in
 * drivers/infiniband/sw/rxe/rxe_task.c). Receiving runs in an RCU read-side section, except for
 * packets between queue pairs of one device.
 *
 * A packet that was queued while rxe_qp_reset() had the task disabled woke no task. It would stay,
 * with its reference, and the destruction would wait for it for 50 seconds. The last reset removes
 * the packet.
 *
 * A card's packets wake no task of the host, and its driver's destruction waits for the card. There
 * the grace period would only interrupt all processors.
 */
static void quiesce(struct ib_qp *qp)
{
	reset(qp);
	if (!ib_uses_virt_dma(qp->device))
		return;
	synchronize_rcu_expedited();
	reset(qp);
}

/* Time limit for a device to flush posted work requests. A flush moves no data. */
#define FLUSH_TIME (10 * HZ)

struct last {
	struct ib_cqe cqe;
	struct completion done;
};

static void last_done(struct ib_cq *cq, struct ib_wc *wc)
{
	complete(&container_of(wc->wr_cqe, struct last, cqe)->done);
}

/*
 * Drains like ib_drain_qp(), which would wait for ever for a device that does not flush. Returns
 * whether all posted work requests have completed. If not, @receive and @send are in use until the
 * queue pair and its completion queue are destroyed.
 */
static bool drain(struct ib_qp *qp, struct last *receive, struct last *send)
{
	struct ib_qp_attr attr = { .qp_state = IB_QPS_ERR };
	struct ib_recv_wr recv_wr = { .wr_cqe = &receive->cqe };
	struct ib_rdma_wr send_wr = {
		.wr = { .wr_cqe = &send->cqe, .opcode = IB_WR_RDMA_WRITE },
	};
	unsigned long left = FLUSH_TIME;

	receive->cqe.done = last_done;
	init_completion(&receive->done);
	send->cqe.done = last_done;
	init_completion(&send->done);
	if (ib_modify_qp(qp, &attr, IB_QP_STATE) || ib_post_recv(qp, &recv_wr, NULL) ||
	    ib_post_send(qp, &send_wr.wr, NULL))
		return false;
	left = wait_for_completion_timeout(&receive->done, left);
	return left && wait_for_completion_timeout(&send->done, left);
}

int kverbs_try_destroy_qp(struct ib_qp *qp)
{
	int ret = ib_destroy_qp(qp);

	if (ret) {
		SAY(qp->device, "queue pair %u was not destroyed (errno %d): it stays for ever",
		    qp->qp_num, -ret);
		/* The driver may call handlers for its events and completions at any time. */
		__module_get(THIS_MODULE);
	}
	return ret;
}

enum kverbs_ended kverbs_destroy_qp(struct ib_qp *qp, struct ib_cq *cq, bool flushes)
{
	enum kverbs_ended ended = KVERBS_ENDED;
	struct last receive, send;

	if (flushes && !drain(qp, &receive, &send)) {
		SAY(qp->device, "queue pair %u does not flush", qp->qp_num);
		ended = KVERBS_ENDED_LATE;
	}
	/* iWARP has no packets without a connection, and no state RESET. */
	if (!kverbs_is_iwarp(qp->device))
		quiesce(qp);
	if (kverbs_try_destroy_qp(qp)) {
		/* Afterwards, no completion uses @receive, @send or the work requests' entries. */
		kverbs_abandon_cq(cq);
		return KVERBS_NOT_ENDED;
	}
	/* Waits for completions that drivers deliver late. */
	kverbs_free_cq(cq);
	return ended;
}

int kverbs_self_connect(struct ib_qp *qp, u32 port)
{
	struct ib_device *dev = qp->device;
	const struct ib_gid_attr *gid = ERR_PTR(-ENODEV);
	struct ib_qp_attr attr = {};
	struct ib_port_attr port_attr;
	int i, ret;

	ret = ib_query_port(dev, port, &port_attr);
	if (ret)
		return ret;
	for (i = 0; i < port_attr.gid_tbl_len && IS_ERR(gid); i++)
		gid = rdma_get_gid_attr(dev, port, i);
	if (IS_ERR(gid))
		return PTR_ERR(gid);

	attr.qp_state = IB_QPS_INIT;
	attr.port_num = port;
	ret = ib_modify_qp(qp, &attr, IB_QP_STATE | IB_QP_PKEY_INDEX | IB_QP_PORT |
				      IB_QP_ACCESS_FLAGS);
	if (ret)
		goto out;

	attr.qp_state = IB_QPS_RTR;
	attr.path_mtu = port_attr.active_mtu;
	attr.dest_qp_num = qp->qp_num;
	/* Unpredictable: a sender with the same address could break the queue pair by a guess. */
	attr.rq_psn = get_random_u32() & 0xffffff;
	attr.sq_psn = attr.rq_psn;
	attr.ah_attr.type = rdma_ah_find_type(dev, port);
	rdma_ah_set_port_num(&attr.ah_attr, port);
	if (attr.ah_attr.type == RDMA_AH_ATTR_TYPE_ROCE) {
		union ib_gid dgid = gid->gid;

		rdma_ah_set_grh(&attr.ah_attr, &dgid, 0, gid->index, 1, 0);
		ret = rdma_read_gid_l2_fields(gid, NULL, attr.ah_attr.roce.dmac);
		if (ret)
			goto out;
	} else {
		rdma_ah_set_dlid(&attr.ah_attr, port_attr.lid);
	}
	ret = ib_modify_qp(qp, &attr, IB_QP_STATE | IB_QP_AV | IB_QP_PATH_MTU | IB_QP_DEST_QPN |
				      IB_QP_RQ_PSN | IB_QP_MAX_DEST_RD_ATOMIC |
				      IB_QP_MIN_RNR_TIMER);
	if (ret)
		goto out;

	attr.qp_state = IB_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 6;
	ret = ib_modify_qp(qp, &attr, IB_QP_STATE | IB_QP_TIMEOUT | IB_QP_RETRY_CNT |
				      IB_QP_RNR_RETRY | IB_QP_SQ_PSN | IB_QP_MAX_QP_RD_ATOMIC);
out:
	if (ret) {
		/* The caller tries the next port, from the first state. */
		attr.qp_state = IB_QPS_RESET;
		ib_modify_qp(qp, &attr, IB_QP_STATE);
	}
	rdma_put_gid_attr(gid);
	return ret;
}

/* Returns the DMA direction for a device that reads, and if @writes, also writes. */
static enum dma_data_direction direction(bool writes)
{
	return writes ? DMA_BIDIRECTIONAL : DMA_TO_DEVICE;
}

bool kverbs_uses_virt_dma(struct ib_device *dev)
{
	return ib_uses_virt_dma(dev);
}

u64 kverbs_dma_map_page(struct ib_device *dev, struct page *page, unsigned long offset,
			size_t size, bool writes)
{
	return ib_dma_map_page(dev, page, offset, size, direction(writes));
}

void kverbs_dma_unmap_page(struct ib_device *dev, u64 addr, size_t size,
			   bool writes)
{
	ib_dma_unmap_page(dev, addr, size, direction(writes));
}

int kverbs_dma_mapping_error(struct ib_device *dev, u64 addr)
{
	return ib_dma_mapping_error(dev, addr);
}

u64 kverbs_dma_map_single(struct ib_device *dev, void *ptr, size_t size,
			  bool writes)
{
	return ib_dma_map_single(dev, ptr, size, direction(writes));
}

void kverbs_dma_unmap_single(struct ib_device *dev, u64 addr, size_t size,
			     bool writes)
{
	ib_dma_unmap_single(dev, addr, size, direction(writes));
}

void kverbs_dma_sync_for_device(struct ib_device *dev, u64 addr, size_t size,
				bool writes)
{
	ib_dma_sync_single_for_device(dev, addr, size, direction(writes));
}

void kverbs_dma_sync_for_cpu(struct ib_device *dev, u64 addr, size_t size, bool writes)
{
	ib_dma_sync_single_for_cpu(dev, addr, size, direction(writes));
}

unsigned int kverbs_dma_max_seg_size(struct ib_device *dev)
{
	return ib_dma_max_seg_size(dev);
}

/* Returns the maximum bytes of one kverbs_dma_map_page(). */
u32 kverbs_dma_max_page(struct ib_device *dev)
{
	if (ib_uses_virt_dma(dev))
		return UINT_MAX;
	return min_t(size_t, dma_get_max_seg_size(dev->dma_device),
		     dma_max_mapping_size(dev->dma_device));
}

void kverbs_sg_init(struct scatterlist *sg, unsigned int n)
{
	sg_init_table(sg, n);
}

void kverbs_sg_set(struct scatterlist *sg, struct page *page, unsigned int len,
		   unsigned int offset)
{
	sg_set_page(sg, page, len, offset);
}

void kverbs_sg_end(struct scatterlist *sg)
{
	sg_mark_end(sg);
}

void kverbs_sg_unend(struct scatterlist *sg)
{
	sg_unmark_end(sg);
}

int kverbs_dma_map_sg(struct ib_device *dev, struct scatterlist *sg, int n,
		      bool writes)
{
	return ib_dma_map_sg(dev, sg, n, direction(writes));
}

void kverbs_dma_unmap_sg(struct ib_device *dev, struct scatterlist *sg, int n,
			 bool writes)
{
	ib_dma_unmap_sg(dev, sg, n, direction(writes));
}

int kverbs_dereg_mr(struct ib_mr *mr)
{
	bool is_siw = mr->device->ops.driver_id == RDMA_DRIVER_SIW;
	int ret = ib_dereg_mr(mr);

	/*
	 * siw does not wait for a peer's write that it is executing. It checks the region and copies
	 * within one call of the socket's sk_data_ready(), in a section without preemption
	 * (siw_qp_llp_data_ready() and siw_proc_write()).
	 */
	if (!ret && is_siw)
		synchronize_rcu_expedited();
	return ret;
}

void kverbs_rotate_key(struct ib_mr *mr, u8 key)
{
	ib_update_fast_reg_key(mr, key);
}

bool kverbs_sets_access(struct ib_device *dev)
{
	return ib_uses_virt_dma(dev) && dev->ops.rereg_user_mr;
}

int kverbs_set_access(struct ib_mr *mr, int access)
{
	struct ib_mr *new;

	new = mr->device->ops.rereg_user_mr(mr, IB_MR_REREG_ACCESS, 0, 0, 0, access, mr->pd, NULL);
	/* Only hardware returns a new region, and kverbs_sets_access() excludes hardware. */
	if (WARN_ON_ONCE(new && !IS_ERR(new))) {
		new->device = mr->device;
		new->pd = mr->pd;
		mr->device->ops.dereg_mr(new, NULL);
		return -EIO;
	}
	return PTR_ERR_OR_ZERO(new);
}

u32 kverbs_random(void)
{
	return get_random_u32();
}

bool kverbs_writes_back(void)
{
	return IS_ENABLED(CONFIG_ARCH_HAS_PMEM_API);
}

void kverbs_write_back(const struct page *page, size_t offset, size_t len)
{
	arch_wb_cache_pmem(page_address(page) + offset, len);
}

void kverbs_stay(void)
{
	migrate_disable();
}

void kverbs_leave(void)
{
	migrate_enable();
}

void kverbs_durable_fence(void)
{
	pmem_wmb();
}

void kverbs_cond_resched(void)
{
	cond_resched();
}

struct mem_cgroup *kverbs_memcg_get(void)
{
	return get_mem_cgroup_from_mm(current->mm);
}

void kverbs_memcg_put(struct mem_cgroup *memcg)
{
	mem_cgroup_put(memcg);
}

struct mem_cgroup *kverbs_memcg_enter(struct mem_cgroup *memcg)
{
	return set_active_memcg(memcg);
}

#ifdef CONFIG_KCOV
/* The handle by which a tracer requests callbacks that the kernel's own threads execute. */
#define KVERBS_KCOV_HANDLE 0x6b666931

bool kverbs_cov_start(void)
{
	if (in_hardirq())
		return false;
	/* Code that is traced already stays traced, and a start may allocate. */
	if (in_serving_softirq() ? current->kcov_softirq : current->kcov_mode || !preemptible())
		return false;
	kcov_remote_start(KVERBS_KCOV_HANDLE);
	return true;
}

void kverbs_cov_stop(void)
{
	kcov_remote_stop();
}
#endif
