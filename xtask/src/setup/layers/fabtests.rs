// SPDX-License-Identifier: MIT OR Apache-2.0

//! The layer with libfabric's own test programs (fabtests), which the distribution does not package.

use super::{make, root, stage, Archive, Mirror, RECIPE};
use crate::chroot::{overlaid, run_logged, Bind};
use crate::context::Context;
use crate::versions::SUITE;
use anyhow::{Context as _, Result};
use std::path::{Path, PathBuf};

/// Builds the programs of `/sources/fabtests`, into `/layer/bin`. The distribution's sources have no
/// `configure`, and the build root no autotools, so this script has the rules of `Makefile.am`.
const BUILD: &str = r#"
cd /sources/fabtests
cat >config.h <<end
#define HAVE_CLOCK_GETTIME 1
#define HAVE_EPOLL 1
#define HAVE___INT128 1
#define PACKAGE_VERSION "of the distribution"
end
flags='-g -O2 -w -D_GNU_SOURCE -DHAVE_CONFIG_H -DCONFIG_PATH="/"'
flags="$flags -I. -Iinclude -Imultinode/include"
mkdir -p /layer/bin objects
common=
for name in shared hmem hmem_cuda hmem_rocr hmem_ze hmem_neuron hmem_synapseai ofi_atomic; do
	gcc $flags -c common/$name.c -o objects/$name.o
	common="$common objects/$name.o"
done
program() {
	to=/layer/bin/$1
	shift
	gcc $flags "$@" $common -o $to -lfabric -lpthread -lm -ldl
}
for source in functional/*.c; do
	name=${source##*/}
	program fi_${name%.c} $source
done
for source in benchmarks/*_bw.c benchmarks/*_pingpong.c; do
	name=${source##*/}
	program fi_${name%.c} $source benchmarks/benchmark_shared.c
done
for source in unit/*_test.c; do
	name=${source##*/}
	program fi_${name%.c} $source unit/common.c
done
program fi_ubertest ubertest/*.c
multi=multinode/src
program fi_multinode $multi/harness.c $multi/pattern.c $multi/core.c $multi/timing.c
program fi_multinode_coll $multi/harness.c $multi/core_coll.c
cp -r scripts test_configs /layer/
"#;

/// Makes the layer.
pub(super) fn layer(ctx: &Context, root: &Path) -> Result<PathBuf> {
    let key = stage::key(&[RECIPE, &root::key(), BUILD]);
    make(ctx, "fabtests", &key, |dir| {
        let (sources, scratch) = (dir.join("sources"), dir.join("scratch"));
        let archive = Archive::of_sources(ctx.cache.join("apt-src"), &Mirror::find()?, SUITE)?;
        archive.unpack_source(ctx, "libfabric", &sources)?;
        let binds = [(dir, "/layer"), (&sources, "/sources")].map(|(from, at)| Bind {
            from: from.to_owned(),
            at: at.into(),
        });
        let argv = ["sh", "-ec", BUILD];
        let cmd = overlaid(root, &scratch, &binds, Path::new("/"), &argv);
        run_logged(cmd, &ctx.log_dir().join("layer-fabtests.log"))?;
        for part in [sources, scratch] {
            std::fs::remove_dir_all(&part).with_context(|| part.display().to_string())?;
        }
        Ok(())
    })
}
