// SPDX-License-Identifier: MIT OR Apache-2.0

//! The programs that run in guests. They are linked statically, so that the guest's libraries do
//! not matter.

use super::modules::keep_going;
use crate::chroot::{command, run_logged, Bind};
use crate::context::{Context, SeedBug};
use crate::progress::Step;
use crate::setup::layers::Layer;
use anyhow::{bail, Context as _, Result};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The compilation target. With an explicit target the flags do not apply to build scripts and
/// macros.
const TARGET: &str = "x86_64-unknown-linux-gnu";

#[derive(Deserialize)]
struct Message {
    reason: String,
    executable: Option<PathBuf>,
}

/// Returns a command for the cargo that runs xtask.
pub fn cargo(ctx: &Context) -> Command {
    let mut cmd = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cmd.current_dir(&ctx.repo);
    cmd
}

/// The package of the guests' first process.
const INIT: &str = "guest-init";

/// Builds every program of the workspace except xtask, and returns their paths.
///
/// With `lenient`, or `KFABRIC_KEEP_GOING` set, programs that do not build are left out. The
/// guests' first process must build.
///
/// # Errors
///
/// If a program does not build; the compiler's messages have been printed.
pub fn build(ctx: &Context, lenient: bool) -> Result<Vec<PathBuf>> {
    let lenient = lenient || keep_going();
    let step = Step::new(ctx, "build the programs");
    let output = cargo(ctx)
        .args([
            "build",
            "--quiet",
            "--release",
            "--workspace",
            "--exclude",
            "xtask",
            "--bins",
        ])
        .args(lenient.then_some("--keep-going"))
        .args([
            "--target",
            TARGET,
            "--message-format",
            "json-render-diagnostics",
        ])
        .arg("--target-dir")
        .arg(ctx.target.join("programs"))
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .stderr(Stdio::inherit())
        .output()
        .context("starting cargo")?;
    let mut found = executables(&String::from_utf8_lossy(&output.stdout));
    let enough = lenient && found.iter().any(|path| path.ends_with(INIT));
    if !output.status.success() && !enough {
        bail!("the programs do not build");
    }
    step.done();
    match provider(ctx) {
        Ok(plugin) => found.push(plugin),
        Err(error) if !lenient => return Err(error),
        Err(error) => eprintln!("  without the libfabric plug-in: {error:#}"),
    }
    let with = ctx.seed_bug.and_then(|bug| Some((bug, bug.program()?)));
    if let Some((bug, (package, name))) = with {
        let with = build_with(ctx, bug, package, name)?;
        found.retain(|path| !path.ends_with(name));
        found.push(with);
    }
    Ok(found)
}

/// Builds the libfabric plug-in, which is linked dynamically, and returns its path. libfabric finds
/// it in the folder that `FI_PROVIDER_PATH` names.
///
/// # Errors
///
/// If the plug-in does not build.
pub fn provider(ctx: &Context) -> Result<PathBuf> {
    let step = Step::new(ctx, "build the libfabric plug-in");
    let target = ctx.target.join("provider");
    let status = cargo(ctx)
        .args(["build", "--quiet", "--release", "--target", TARGET])
        .args(["--package", "libfabric-provider", "--target-dir"])
        .arg(&target)
        .env_remove("RUSTFLAGS")
        .status()
        .context("starting cargo")?;
    if !status.success() {
        bail!("the libfabric plug-in does not build");
    }
    step.done();
    let dir = target.join(TARGET).join("release");
    Ok(dir.join("libkfabric_fi.so"))
}

/// C programs that call libfabric: name, folder and source.
const OF_LIBFABRIC: [(&str, &str, &str); 5] = [
    ("fi_cases", "qemu-tests/interop", "fi_cases.c"),
    ("fi_local", "qemu-tests/interop", "fi_local.c"),
    ("fi_newer", "qemu-tests/interop", "fi_newer.c"),
    ("fi_two", "qemu-tests/interop", "fi_two.c"),
    ("kfi-example-libfabric", "examples/libfabric", "remote.c"),
];

/// Builds the C programs that call libfabric, with the compiler and the libraries of `root`, which
/// guests have too. Returns the programs' paths.
///
/// # Errors
///
/// If a program does not build; the error contains the compiler's messages.
pub fn of_libfabric(ctx: &Context, root: &Path) -> Result<Vec<PathBuf>> {
    let step = Step::new(ctx, "build the C programs");
    let dir = ctx.target.join("libfabric-programs");
    std::fs::create_dir_all(&dir)?;
    let mut all = Vec::new();
    for (name, folder, source) in OF_LIBFABRIC {
        let from = ctx.repo.join(folder);
        let (source, program) = (from.join(source), dir.join(name));
        let (source, to) = (source.to_string_lossy(), program.to_string_lossy());
        let argv = [
            "gcc",
            "-O1",
            "-Wall",
            "-Werror",
            // The plug-in calls a function of `fi_newer`.
            "-rdynamic",
            "-o",
            &to,
            &source,
            "-Wl,--as-needed",
            "-lfabric",
        ];
        let binds = [Bind::same(&from), Bind::same(&dir)];
        let cmd = command(root, &binds, Path::new("/"), &argv);
        run_logged(cmd, &dir.join("log"))?;
        all.push(program);
    }
    step.done();
    Ok(all)
}

/// Checks and builds the plug-in of the emulator that cuts the power of persistent memory, with the
/// compiler of `root`, whose libraries the emulator uses. Returns the plug-in's path.
///
/// # Errors
///
/// If the plug-in does not build, or a check fails; the error contains the messages.
pub fn pmcut(ctx: &Context, root: &Path) -> Result<PathBuf> {
    let step = Step::new(ctx, "build the plug-in pmcut");
    let from = ctx.repo.join("qemu-tests/pmcut");
    let dir = ctx.target.join("pmcut-plugin");
    std::fs::create_dir_all(&dir)?;
    let plugin = dir.join("pmcut.so");
    let script = "flags='-O2 -Wall -Wextra -Werror -pthread'
        gcc $flags -o \"$2/check\" \"$1/check.c\"
        \"$2/check\"
        gcc $flags -shared -fPIC -fvisibility=hidden -o \"$2/pmcut.so\" \"$1/pmcut.c\"";
    let (source, to) = (from.to_string_lossy(), dir.to_string_lossy());
    let argv = ["sh", "-ec", script, "pmcut", &source, &to];
    let binds = [Bind::same(&from), Bind::same(&dir)];
    run_logged(
        command(root, &binds, Path::new("/"), &argv),
        &dir.join("log"),
    )?;
    step.done();
    Ok(plugin)
}

/// The MPI implementations: a layer's tag, the path at which guests mount the layer, the headers
/// and the libraries in the layer, and the name of the program that is built with them.
const OF_MPI: [(&str, &str, &str, &str, &str); 2] = [
    (
        "kfabric-mpi",
        "/opt/kfabric-mpi",
        "usr/lib/x86_64-linux-gnu/openmpi/include",
        "usr/lib/x86_64-linux-gnu/openmpi/lib",
        "mpi_cases_openmpi",
    ),
    (
        "kfabric-pypi",
        "/opt/kfabric-pypi",
        "mpich/include",
        "mpich/lib",
        "mpi_cases_mpich",
    ),
];

/// Builds `mpi_cases.c` for each MPI implementation among the layers. Returns the programs' paths.
///
/// # Errors
///
/// If a program does not build; the error contains the compiler's messages.
pub fn of_mpi(ctx: &Context, root: &Path, layers: &[Layer]) -> Result<Vec<PathBuf>> {
    let dir = ctx.target.join("libfabric-programs");
    std::fs::create_dir_all(&dir)?;
    let from = ctx.repo.join("qemu-tests/interop");
    let source = from.join("mpi_cases.c").display().to_string();
    let mut all = Vec::new();
    for (tag, at, headers, libraries, name) in OF_MPI {
        let Some(layer) = layers.iter().find(|layer| layer.tag == tag) else {
            continue;
        };
        let program = dir.join(name);
        let to = program.display().to_string();
        let (headers, libraries) = (format!("-I{at}/{headers}"), format!("{at}/{libraries}"));
        let (search, run) = (format!("-L{libraries}"), format!("-Wl,-rpath,{libraries}"));
        let argv = [
            "gcc",
            "-O1",
            "-Wall",
            "-Werror",
            &headers,
            "-o",
            &to,
            &source,
            &search,
            &run,
            // The libraries of the layer's own libraries are not in the build root.
            "-Wl,--allow-shlib-undefined",
            "-lmpi",
        ];
        let at = Bind {
            from: layer.path.clone(),
            at: at.into(),
        };
        let binds = [Bind::same(&from), Bind::same(&dir), at];
        let cmd = command(root, &binds, Path::new("/"), &argv);
        run_logged(cmd, &dir.join("log"))?;
        all.push(program);
    }
    Ok(all)
}

/// Builds one program with a seeded bug, in a separate folder. Returns the program's path.
fn build_with(ctx: &Context, bug: SeedBug, package: &str, program: &str) -> Result<PathBuf> {
    let step = Step::new(ctx, format!("build {program} with {}", bug.name()));
    let flags = format!(
        "-C target-feature=+crt-static --cfg kfabric_seed_bug=\"{}\"",
        bug.name()
    );
    let output = cargo(ctx)
        .args(["build", "--quiet", "--release", "--package", package])
        .args(["--bin", program, "--target", TARGET])
        .args(["--message-format", "json-render-diagnostics"])
        .arg("--target-dir")
        .arg(ctx.target.join(format!("programs-with-{}", bug.name())))
        .env("RUSTFLAGS", flags)
        .stderr(Stdio::inherit())
        .output()
        .context("starting cargo")?;
    let mut found = executables(&String::from_utf8_lossy(&output.stdout));
    match found.pop() {
        Some(path) if output.status.success() && path.ends_with(program) => {
            step.done();
            Ok(path)
        }
        _ => bail!("{program} does not build"),
    }
}

/// Returns the programs named in cargo's messages.
fn executables(messages: &str) -> Vec<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Message>(line).ok())
        .filter(|message| message.reason == "compiler-artifact")
        .filter_map(|message| message.executable)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_read_from_cargos_messages() {
        let text = "{\"reason\":\"compiler-artifact\",\"executable\":null}\n\
                    {\"reason\":\"compiler-artifact\",\"executable\":\"/t/kfi\"}\n\
                    {\"reason\":\"build-finished\",\"success\":true}\n";
        assert_eq!(executables(text), [PathBuf::from("/t/kfi")]);
    }
}
