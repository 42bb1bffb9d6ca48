/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A driver of messages with bulk data. A request names the place of the data. Its target moves the
 * data by one-sided operations, and answers.
 */
#ifndef KFI_TEST_C_LND_H
#define KFI_TEST_C_LND_H

#include <linux/bvec.h>
#include <linux/completion.h>
#include <linux/list.h>
#include <linux/spinlock.h>
#include <linux/workqueue.h>

#include <kfi_cm.h>
#include <kfi_domain.h>
#include <kfi_endpoint.h>
#include <kfi_eq.h>
#include <kfi_errno.h>
#include <kfi_rma.h>

/* Maximum pages of bulk data of a request, and pieces of one operation. */
#define LND_PAGES	16
#define LND_PIECES	4
/* Number of posted receives. */
#define LND_BUFS	8
#define LND_MSG_SIZE	128
/* Time until a refused post is retried, in milliseconds. */
#define LND_REPLAY_MS	10
/* Time limit of any wait, in milliseconds. */
#define LND_LIMIT_MS	10000

/* A message on the wire. */
struct lnd_msg {
	__le64	cookie;
	__le64	addr;
	__le64	key;
	__le32	len;
	__le32	kind;
};

enum lnd_kind {
	LND_GET	= 1,
	LND_PUT	= 2,
	LND_DONE = 3,
};

struct lnd_ep;

/* A transaction in flight. Its address is the context of completions. */
struct lnd_tn {
	struct list_head	list;
	struct lnd_ep		*ep;
	/* Posts the next operation; -EAGAIN: try again later. */
	int			(*post)(struct lnd_tn *tn);
	struct lnd_msg		*msg;
	struct lnd_msg		request;
	/* Numbers of pages posted and of operations completed. */
	unsigned int		posted, over;
	int			status;
	struct completion	done;
};

/* A receive. */
struct lnd_buf {
	struct lnd_ep		*ep;
	struct lnd_msg		*msg;
};

/* An endpoint, its queues and its memory. */
struct lnd_ep {
	struct kfid_domain	*domain;
	struct kfid_ep		*ep;
	struct kfid_eq		*eq;
	struct kfid_cq		*tx_cq, *rx_cq;
	struct workqueue_struct	*wq;
	struct work_struct	tx_work, rx_work;
	struct delayed_work	replay;
	spinlock_t		lock;
	struct list_head	to_replay;
	unsigned int		replayed;
	/* The connected event was read. The peer may have its event, and have sent, before. */
	bool			connected;
	bool			closing;
	/* Received messages, then sent messages. */
	u8			*space;
	struct kfid_mr		*space_mr;
	struct lnd_buf		bufs[LND_BUFS];
	struct lnd_tn		answers[LND_BUFS];
	unsigned long		free_answers;
	/* Bulk data. */
	struct bio_vec		bulk[LND_PAGES];
	struct kfid_mr		*bulk_mr;
	/* The transaction that waits for an answer. */
	struct lnd_tn		*waiting;
	/* Our own request. */
	struct lnd_tn		own;
	atomic_t		strange;
};

/* The device and a listener. */
struct lnd_dev {
	struct kfi_info		*info;
	struct kfid_fabric	*fabric;
	struct kfid_domain	*domain;
	struct kfid_eq		*eq;
	struct kfid_pep		*pep;
};

int lnd_dev_open(struct lnd_dev *dev, const char *provider, const char *node, const char *service,
		 u64 flags);
int lnd_dev_listen(struct lnd_dev *dev);
int lnd_dev_accept(struct lnd_dev *dev, struct lnd_ep *ep);
int lnd_dev_close(struct lnd_dev *dev);
int lnd_connected(struct lnd_ep *ep);
void lnd_paint(struct lnd_ep *ep, u8 seed);
int lnd_painted(struct lnd_ep *ep, u8 seed, int pages);
void lnd_nodes_init(const char *provider);
void lnd_nodes_exit(void);
int lnd_ep_open(struct lnd_ep *ep, struct kfid_fabric *fabric, struct kfid_domain *domain,
		struct kfi_info *info);
void lnd_ep_close(struct lnd_ep *ep);
int lnd_request(struct lnd_ep *ep, enum lnd_kind kind, unsigned int pages);

#endif
