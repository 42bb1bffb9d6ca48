/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Included before each file of siw (drivers/infiniband/sw/siw), whose sources stay as they are.
 *
 * siw_connect() and siw_create_listen() create their socket in the network namespace of the current
 * task (siw_cm.c, sock_create()). A kernel consumer connects from a worker, whose namespace is the
 * first one. So a device in another namespace could not connect. Here, a socket is created in the
 * namespace of the device's interface.
 */
#include <linux/net.h>
#include <linux/netdevice.h>
#include <linux/skbuff.h>
#include <linux/crc32c.h>
#include <net/net_namespace.h>
#include <rdma/ib_verbs.h>

static inline int siw_device_socket(struct ib_device *dev, int family, int type, int protocol,
				    struct socket **sock)
{
	struct net_device *ndev = ib_device_get_netdev(dev, 1);
	int ret;

	if (!ndev)
		return -ENODEV;
	ret = __sock_create(dev_net(ndev), family, type, protocol, sock, 0);
	dev_put(ndev);
	return ret;
}

/* Both callers have the iw_cm_id as `id`. */
#define sock_create(family, type, protocol, sock)                                                  \
	siw_device_socket(id->device, family, type, protocol, sock)

#ifndef CONFIG_NET_CRC32C
/* A kernel that is configured without siw may lack this function. */
static inline u32 siw_skb_crc32c(const struct sk_buff *skb, int offset, int len, u32 crc)
{
	u8 part[64];

	while (len > 0) {
		int n = min_t(int, len, sizeof(part));

		if (skb_copy_bits(skb, offset, part, n))
			break;
		crc = crc32c(crc, part, n);
		offset += n;
		len -= n;
	}
	return crc;
}

#define skb_crc32c siw_skb_crc32c
#endif
