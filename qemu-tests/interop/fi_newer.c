// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A libfabric that is newer than any: this program, as far as the plug-in calls it. It loads the plug-in,
 * and prints the version of libfabric whose requests the plug-in serves.
 *
 *   fi_newer PLUGIN
 *
 * The program is linked with -rdynamic, and not to libfabric. It ends with status 1 if the plug-in does
 * not load.
 */
#include <dlfcn.h>
#include <rdma/providers/fi_prov.h>
#include <stdio.h>

uint32_t fi_version(void)
{
	return FI_VERSION(FI_MAJOR_VERSION, 999);
}

int main(int argc, char **argv)
{
	struct fi_provider *(*init)(void) = NULL;
	void *at = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
	uint32_t version;

	if (at)
		*(void **)&init = dlsym(at, "fi_prov_ini");
	if (!init)
		return 1;
	version = init()->fi_version;
	printf("%u.%u\n", FI_MAJOR(version), FI_MINOR(version));
	return 0;
}
