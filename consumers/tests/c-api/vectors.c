// SPDX-License-Identifier: GPL-2.0
/* Tests of address vectors. */
#include <linux/in.h>
#include <linux/inet.h>
#include <linux/string.h>

#include "tests.h"

static __be32 node(u8 last)
{
	return cpu_to_be32(0x0a000000 + last);
}

static void names(struct test *t)
{
	struct sockaddr_in in[3] = {}, found;
	struct kfi_av_attr attr = { .type = KFI_AV_MAP, .rx_ctx_bits = 8, .count = 4 };
	kfi_addr_t name[4] = {}, bad;
	size_t len = sizeof(found);
	struct kfid_av *av;
	int i, errors[3];
	char text[40];

	for (i = 0; i < 3; i++) {
		in[i].sin_family = AF_INET;
		in[i].sin_port = cpu_to_be16(1000 + i);
		in[i].sin_addr.s_addr = node(i + 1);
	}
	if (!EXPECT_EQ(t, kfi_av_open(t->st->domain, &attr, &av, t), 0))
		return;
	EXPECT(t, av->fid.context == t && av->fid.fclass == KFI_CLASS_AV);
	EXPECT_EQ(t, kfi_close(&t->st->domain->fid), -EBUSY);
	EXPECT_EQ(t, kfi_av_insert(av, in, 3, name, 0, NULL), 3);
	EXPECT(t, name[0] != name[1] && name[1] != name[2] && name[0] != name[2]);
	for (i = 0; i < 3; i++) {
		/* The name of a receive context stands for its address, too. */
		kfi_addr_t of = kfi_rx_addr(name[i], i, 8);

		len = sizeof(found);
		EXPECT_EQ(t, kfi_av_lookup(av, of, &found, &len), 0);
		EXPECT_EQ(t, len, sizeof(found));
		EXPECT(t, !memcmp(&found, &in[i], sizeof(found)));
	}
	len = 4;
	EXPECT_EQ(t, kfi_av_lookup(av, name[0], &found, &len), -KFI_ETOOSMALL);
	EXPECT_EQ(t, len, sizeof(found));
	EXPECT_EQ(t, kfi_av_remove(av, &name[1], 1, 0), 0);
	EXPECT_EQ(t, kfi_av_remove(av, &name[1], 1, 0), -EINVAL);
	EXPECT_EQ(t, kfi_av_lookup(av, name[1], &found, &len), -EINVAL);
	/* From an invalid address on no address is inserted, and each has an error. */
	in[1].sin_family = 77;
	EXPECT_EQ(t, kfi_av_insert(av, in, 3, name, KFI_SYNC_ERR, errors), 1);
	EXPECT(t, name[0] != KFI_ADDR_NOTAVAIL && name[1] == KFI_ADDR_NOTAVAIL);
	EXPECT(t, !errors[0] && errors[1] == EINVAL && errors[2] == EINVAL);
	EXPECT_EQ(t, kfi_av_insert(av, in, 1, name, KFI_EVENT, NULL), -EINVAL);
	EXPECT_EQ(t, kfi_av_insert(av, in, 1, name, KFI_SYNC_ERR, NULL), -EINVAL);
	EXPECT_EQ(t, kfi_av_insertsvc(av, "10.0.0.9", "77", name, 0, NULL), 1);
	len = sizeof(found);
	EXPECT_EQ(t, kfi_av_lookup(av, name[0], &found, &len), 0);
	EXPECT(t, found.sin_addr.s_addr == node(9) && found.sin_port == cpu_to_be16(77));
	len = sizeof(text);
	EXPECT(t, !strcmp(kfi_av_straddr(av, &found, text, &len), "10.0.0.9:77"));
	EXPECT_EQ(t, len, sizeof("10.0.0.9:77"));
	len = 3;
	EXPECT(t, !strcmp(kfi_av_straddr(av, &found, text, &len), "10"));
	EXPECT_EQ(t, len, sizeof("10.0.0.9:77"));
	EXPECT_EQ(t, kfi_av_insertsym(av, "10.0.0.20", 2, "500", 2, name, 0, NULL), 4);
	len = sizeof(found);
	EXPECT_EQ(t, kfi_av_lookup(av, name[3], &found, &len), 0);
	EXPECT(t, found.sin_addr.s_addr == node(21) && found.sin_port == cpu_to_be16(501));
	EXPECT_EQ(t, kfi_av_insertsvc(av, "nowhere", "77", &bad, 0, NULL), -EINVAL);
	EXPECT_EQ(t, kfi_av_insertsvc(av, NULL, "77", &bad, 0, NULL), -EINVAL);
	EXPECT_EQ(t, kfi_av_bind(av, &t->st->eq->fid, 0), -ENOSYS);
	EXPECT_EQ(t, kfi_close(&av->fid), 0);
	attr.rx_ctx_bits = 64;
	EXPECT_EQ(t, kfi_av_open(t->st->domain, &attr, &av, t), -EINVAL);
	attr = (struct kfi_av_attr){ .name = "shared" };
	EXPECT_EQ(t, kfi_av_open(t->st->domain, &attr, &av, t), -ENOSYS);
}

/* A looked-up address can be connected to. */
static void connects(struct test *t)
{
	struct kfi_info *info = kfi_dupinfo(t->st->info), *request;
	struct sockaddr_in6 found;
	size_t len = sizeof(found);
	struct kfid_av *av;
	kfi_addr_t name;

	if (!EXPECT(t, info))
		return;
	if (EXPECT_EQ(t, kfi_av_open(t->st->domain, NULL, &av, t), 0)) {
		EXPECT_EQ(t, kfi_av_insert(av, &t->st->addr, 1, &name, 0, NULL), 1);
		EXPECT_EQ(t, kfi_av_lookup(av, name, &found, &len), 0);
		if (side_open(t, &t->a, info, 0) &&
		    EXPECT_EQ(t, kfi_connect(t->a.ep, &found, NULL, 0), 0)) {
			EXPECT_EQ(t, kfi_ep_bind(t->a.ep, &av->fid, 0), -EINVAL);
			request = next_request(t);
			if (request && side_open(t, &t->b, request, 0))
				pair_connect(t, request);
			kfi_freeinfo(request);
		}
		EXPECT_EQ(t, kfi_close(&av->fid), 0);
	}
	kfi_freeinfo(info);
}

const struct group vector_tests[] = {
	{ "address_vectors", names, false },
	{ "addresses_of_vectors_are_connected_to", connects, false },
	{}
};
