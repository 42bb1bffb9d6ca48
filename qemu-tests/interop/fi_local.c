// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Loads a libfabric of any name with RTLD_LOCAL, as a program with a libfabric of its own does, and
 * prints the number of infos of a provider.
 *
 *   fi_local LIBRARY PROVIDER
 *
 * The program is not linked to libfabric. It ends with status 1 if libfabric is missing, and prints
 * fi_getinfo's negative status if that fails.
 */
#include <dlfcn.h>
#include <rdma/fabric.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
	int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *,
		       struct fi_info **);
	struct fi_info *(*dupinfo)(const struct fi_info *);
	struct fi_info *hints, *found = NULL;
	void *lib;
	int rc, n = 0;

	if (argc != 3)
		return 2;
	lib = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	if (!lib) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	*(void **)&getinfo = dlsym(lib, "fi_getinfo");
	*(void **)&dupinfo = dlsym(lib, "fi_dupinfo");
	if (!getinfo || !dupinfo)
		return 1;
	hints = dupinfo(NULL);
	if (!hints)
		return 1;
	hints->ep_attr->type = FI_EP_MSG;
	hints->mode = FI_RX_CQ_DATA;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED |
				      FI_MR_PROV_KEY;
	hints->fabric_attr->prov_name = strdup(argv[2]);
	rc = getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &found);
	for (; !rc && found; found = found->next)
		n++;
	printf("%d\n", rc ? rc : n);
	return 0;
}
