// SPDX-License-Identifier: GPL-2.0
/*
 * Steps of a connection. In each step the client prepares its memory and sends a token. The server
 * makes one call and sends a token. The client then checks the result.
 */
#include <linux/kernel.h>
#include <linux/printk.h>
#include <linux/string.h>

#include "msg.h"

#define DATA_LEN	(MSG_PIECES * MSG_PIECE)
/* The value in memory, and the operand of a message or a call. */
#define THERE		1000
#define GIVEN		42

/* The client's preparation of a step. */
enum ready {
	/*
	 * Nothing; a receive of one piece, of all pieces, of no bytes; data for the server to read.
	 */
	NOTHING,
	TAKES_PIECE,
	TAKES_ALL,
	TAKES_NOTHING,
	HAS_DATA,
	HAS_VALUE,
};

struct step {
	const char	*name;
	enum ready	ready;
	/* Completion flags of the call at the server, and at the client (or 0). */
	u64		flags, client_flags;
	/* Number of moved pieces of data. */
	int		pieces;
	/* Expected value at the client after the step. */
	u64		value;
	ssize_t		(*post)(struct msg_conn *conn, u64 data);
	/* Returns whether the device supports the call; NULL: all devices do. */
	bool		(*has)(struct msg_conn *conn);
};

static u64 remote_of(const struct msg_conn *conn, const void *at)
{
	return conn->addr + ((const u8 *)at - (const u8 *)conn->space);
}

static void paint(struct msg_conn *conn, u8 seed)
{
	int i;

	for (i = 0; i < MSG_PIECES; i++)
		memset(conn->space->data[i], seed ? seed + i : 0, MSG_PIECE);
}

static int painted(struct msg_conn *conn, u8 seed, int pieces)
{
	int i;

	for (i = 0; i < pieces; i++)
		if (memchr_inv(conn->space->data[i], (u8)(seed + i), MSG_PIECE))
			return -EBADMSG;
	return 0;
}

static ssize_t post_send(struct msg_conn *conn, u64 data)
{
	return kfi_send(conn->ep, conn->pieces[0].iov_base, MSG_PIECE, conn->descs[0], 0, conn);
}

static ssize_t post_sendv(struct msg_conn *conn, u64 data)
{
	return kfi_sendv(conn->ep, conn->pieces, conn->descs, MSG_PIECES, 0, conn);
}

static ssize_t post_senddata(struct msg_conn *conn, u64 data)
{
	return kfi_senddata(conn->ep, conn->pieces[0].iov_base, MSG_PIECE, conn->descs[0], data, 0,
			    conn);
}

/* An inject message that completes. Its buffer can be reused at once. */
static ssize_t post_injected(struct msg_conn *conn, u64 data)
{
	struct kvec kv = { conn->pieces[0].iov_base, 16 };
	struct kfi_msg msg = {
		.type = KFI_KVEC,
		.msg_iov = &kv,
		.iov_count = 1,
		.context = conn,
	};

	return kfi_sendmsg(conn->ep, &msg, KFI_INJECT);
}

static ssize_t post_write(struct msg_conn *conn, u64 data)
{
	return kfi_write(conn->ep, conn->pieces[0].iov_base, MSG_PIECE, conn->descs[0], 0,
			 remote_of(conn, conn->space->data), conn->key, conn);
}

static ssize_t post_writev(struct msg_conn *conn, u64 data)
{
	return kfi_writev(conn->ep, conn->pieces, conn->descs, MSG_PIECES, 0,
			  remote_of(conn, conn->space->data), conn->key, conn);
}

static ssize_t post_writedata(struct msg_conn *conn, u64 data)
{
	return kfi_writedata(conn->ep, conn->pieces[0].iov_base, MSG_PIECE, conn->descs[0], data, 0,
			     remote_of(conn, conn->space->data), conn->key, conn);
}

static ssize_t post_read(struct msg_conn *conn, u64 data)
{
	return kfi_read(conn->ep, conn->pieces[0].iov_base, MSG_PIECE, conn->descs[0], 0,
			remote_of(conn, conn->space->data), conn->key, conn);
}

static ssize_t post_readv(struct msg_conn *conn, u64 data)
{
	return kfi_readv(conn->ep, conn->pieces, conn->descs, MSG_PIECES, 0,
			 remote_of(conn, conn->space->data), conn->key, conn);
}

static ssize_t post_atomic_write(struct msg_conn *conn, u64 data)
{
	u64 given = GIVEN;

	return kfi_atomic(conn->ep, &given, 1, NULL, 0, remote_of(conn, &conn->space->value),
			  conn->key, KFI_UINT64, KFI_ATOMIC_WRITE, conn);
}

static ssize_t post_fetch(struct msg_conn *conn, u64 data)
{
	u64 given = GIVEN;

	return kfi_fetch_atomic(conn->ep, &given, 1, NULL, &conn->space->old, conn->descs[0], 0,
				remote_of(conn, &conn->space->value), conn->key, KFI_UINT64,
				KFI_SUM, conn);
}

static ssize_t post_compare(struct msg_conn *conn, u64 data)
{
	u64 given = GIVEN, compare = THERE;

	return kfi_compare_atomic(conn->ep, &given, 1, NULL, &compare, NULL, &conn->space->old,
				  conn->descs[0], 0, remote_of(conn, &conn->space->value),
				  conn->key, KFI_UINT64, KFI_CSWAP, conn);
}

static bool has_write(struct msg_conn *conn)
{
	return !kfi_atomicvalid(conn->ep, KFI_UINT64, KFI_ATOMIC_WRITE, NULL);
}

static bool has_fetch(struct msg_conn *conn)
{
	return !kfi_fetch_atomicvalid(conn->ep, KFI_UINT64, KFI_SUM, NULL);
}

static bool has_compare(struct msg_conn *conn)
{
	return !kfi_compare_atomicvalid(conn->ep, KFI_UINT64, KFI_CSWAP, NULL);
}

#define SENT	(KFI_MSG | KFI_SEND)
#define CAME	(KFI_MSG | KFI_RECV)

static const struct step steps[] = {
	{ "send", TAKES_PIECE, SENT, CAME, 1, 0, post_send },
	{ "sendv", TAKES_ALL, SENT, CAME, MSG_PIECES, 0, post_sendv },
	{ "senddata", TAKES_PIECE, SENT, CAME | KFI_REMOTE_CQ_DATA, 1, 0, post_senddata },
	{ "sendmsg with KFI_INJECT", TAKES_PIECE, SENT, CAME, 0, 0, post_injected },
	{ "write", NOTHING, KFI_RMA | KFI_WRITE, 0, 1, 0, post_write },
	{ "writev", NOTHING, KFI_RMA | KFI_WRITE, 0, MSG_PIECES, 0, post_writev },
	{ "writedata", TAKES_NOTHING, KFI_RMA | KFI_WRITE,
	  KFI_RMA | KFI_REMOTE_WRITE | KFI_REMOTE_CQ_DATA, 1, 0, post_writedata },
	{ "read", HAS_DATA, KFI_RMA | KFI_READ, 0, 1, 0, post_read },
	{ "readv", HAS_DATA, KFI_RMA | KFI_READ, 0, MSG_PIECES, 0, post_readv },
	{ "atomic write", HAS_VALUE, KFI_ATOMIC | KFI_WRITE, 0, 0, GIVEN, post_atomic_write,
	  has_write },
	{ "fetch_atomic", HAS_VALUE, KFI_ATOMIC | KFI_READ, 0, 0, THERE + GIVEN, post_fetch,
	  has_fetch },
	{ "compare_atomic", HAS_VALUE, KFI_ATOMIC | KFI_READ, 0, 0, GIVEN, post_compare,
	  has_compare },
};

/* Prepares the client's memory and receives; the last receive is for the server's token. */
static int make_ready(struct msg_conn *conn, const struct step *step, u8 seed)
{
	int err = 0;

	paint(conn, step->ready == HAS_DATA ? seed : 0);
	conn->space->value = THERE;
	switch (step->ready) {
	case TAKES_PIECE:
		err = kfi_recv(conn->ep, conn->pieces[0].iov_base, MSG_PIECE, conn->descs[0], 0, conn);
		break;
	case TAKES_ALL:
		err = kfi_recvv(conn->ep, conn->pieces, conn->descs, MSG_PIECES, 0, conn);
		break;
	case TAKES_NOTHING:
		err = kfi_recv(conn->ep, NULL, 0, NULL, 0, conn);
		break;
	default:
		break;
	}
	return err ?: msg_expect_token(conn);
}

static int client_step(struct msg_conn *conn, const struct step *step, u8 seed)
{
	u64 data = 0;
	int err;

	err = make_ready(conn, step, seed);
	err = err ?: msg_tell(conn);
	if (!err && step->client_flags)
		err = msg_wait(conn, conn->rx, conn, step->client_flags, &data);
	if (!err && (step->client_flags & KFI_REMOTE_CQ_DATA) && data != seed)
		err = -EILSEQ;
	err = err ?: msg_hear(conn);
	if (!err && step->ready != HAS_DATA)
		err = painted(conn, seed, step->pieces);
	if (!err && step->ready == HAS_VALUE && READ_ONCE(conn->space->value) != step->value)
		err = -EBADMSG;
	return err;
}

static int server_step(struct msg_conn *conn, const struct step *step, u8 seed)
{
	int err;

	err = msg_hear(conn);
	err = err ?: msg_expect_token(conn);
	if (err)
		return err;
	paint(conn, step->ready == HAS_DATA ? 0 : seed);
	conn->space->old = 0;
	err = step->post(conn, seed);
	err = err ?: msg_wait(conn, conn->tx, conn, step->flags, NULL);
	if (!err && step->ready == HAS_DATA)
		err = painted(conn, seed, step->pieces);
	if (!err && (step->flags & KFI_ATOMIC) && (step->flags & KFI_READ) &&
	    READ_ONCE(conn->space->old) != THERE)
		err = -EBADMSG;
	return err ?: msg_tell(conn);
}

static int all(struct msg_conn *conn,
	       int (*one)(struct msg_conn *conn, const struct step *step, u8 seed))
{
	int i, err = 0;

	for (i = 0; !err && i < ARRAY_SIZE(steps); i++) {
		if (steps[i].has && !steps[i].has(conn))
			continue;
		conn->step = steps[i].name;
		err = one(conn, &steps[i], 16 * i + 1);
	}
	if (!err)
		conn->step = NULL;
	return err;
}

int msg_client(struct msg_conn *conn)
{
	return all(conn, client_step);
}

int msg_server(struct msg_conn *conn)
{
	return all(conn, server_step);
}
