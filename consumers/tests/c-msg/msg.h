/* SPDX-License-Identifier: GPL-2.0 */
/* A connection of the client or of the server, and its steps. */
#ifndef KFI_TEST_C_MSG_H
#define KFI_TEST_C_MSG_H

#include <linux/types.h>
#include <linux/uio.h>

#include <kfi_atomic.h>
#include <kfi_cm.h>
#include <kfi_domain.h>
#include <kfi_endpoint.h>
#include <kfi_eq.h>
#include <kfi_errno.h>
#include <kfi_rma.h>

/* Number of pieces of an operation, and their size in bytes. */
#define MSG_PIECES	4
#define MSG_PIECE	8192
/* Size of a token, a message that lets the peer go on, in bytes. */
#define MSG_TOKEN	64

/* Memory of a connection, registered as a whole, so that peers can access all of it. */
struct msg_space {
	u8	data[MSG_PIECES][MSG_PIECE];
	__le32	out[MSG_TOKEN / sizeof(__le32)];
	__le32	in[MSG_TOKEN / sizeof(__le32)];
	/* The value that atomics change, and the old value that they return. */
	u64	value;
	u64	old;
};

/* Address and key of a peer's memory, exchanged as connection data. */
struct msg_remote {
	__le64	addr;
	__le64	key;
};

struct msg_conn {
	struct kfid_fabric	*fabric;
	struct kfid_domain	*domain;
	struct kfid_eq		*eq;
	struct kfid_cq		*tx, *rx;
	struct kfid_ep		*ep;
	struct kfid_mr		*mr;
	struct msg_space	*space;
	struct kvec		pieces[MSG_PIECES];
	void			*descs[MSG_PIECES];
	u64			addr, key;
	/* Numbers of tokens sent and received. */
	u32			told, heard;
	/* The failed step. */
	const char		*step;
};

/* The server's listener. */
struct msg_place {
	struct kfi_info		*info;
	struct kfid_fabric	*fabric;
	struct kfid_eq		*eq;
	struct kfid_pep		*pep;
};

/* conn.c */
struct kfi_info *msg_info(const char *provider, const char *node, const char *service, u64 flags);
int msg_listen(struct msg_place *place, struct kfi_info *info);
int msg_place_close(struct msg_place *place);
int msg_accept(struct msg_place *place, struct msg_conn *conn);
int msg_connect(struct msg_conn *conn, struct kfi_info *info);
int msg_conn_close(struct msg_conn *conn, bool ends);
int msg_wait(struct msg_conn *conn, struct kfid_cq *cq, void *context, u64 flags, u64 *data);
int msg_expect_token(struct msg_conn *conn);
int msg_tell(struct msg_conn *conn);
int msg_hear(struct msg_conn *conn);

/* steps.c */
int msg_client(struct msg_conn *conn);
int msg_server(struct msg_conn *conn);

#endif
