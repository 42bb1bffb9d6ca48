// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask`: the project's daily tool.

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use xtask::{
    bench, build, context, demo, fault, fuzz, guest, hostfuzz, ide, install, lint, package, pmcut,
    selftest, setup, soak, test,
};

/// Sets up, builds, boots, tests and checks kfabric.
#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    version,
    max_term_width = 100
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make the build root, the kernel and the rust/ metadata, which all other commands need.
    Setup(setup::Args),
    /// Build the modules and the programs.
    Build(build::Args),
    /// Boot guests with RDMA devices and the modules loaded, and run a command.
    Guest(guest::GuestArgs),
    /// Boot guests and get a shell in them.
    Shell(guest::ShellArgs),
    /// Run every test, on the host and in guests.
    Test(test::Args),
    /// Check that the tests find bugs: run them on modules with seeded bugs.
    Selftest(selftest::Args),
    /// Fuzz, on the host, every parser of untrusted bytes that needs no kernel.
    Hostfuzz(hostfuzz::Args),
    /// Run storms and long tests, on one guest and on two, for any length of time.
    Soak(soak::Args),
    /// Run the benchmarks, in a guest whose clock counts instructions.
    Bench(bench::Args),
    /// Cut the power of a guest's persistent memory, and check that durable writes are there.
    Pmcut(pmcut::Args),
    /// Run every call with its 1st, 2nd, … nth failure, on the debug kernel.
    Fault(fault::Args),
    /// Show how one guest reads another guest's memory.
    Demo(demo::Args),
    /// Fuzz the device and its rings, in a guest with the debug kernel.
    Fuzz(fuzz::Args),
    /// Run the static checks.
    Lint(lint::Args),
    /// Write rust-project.json, so that rust-analyzer understands the modules.
    Ide,
    /// Install the programs, their man pages and more; with --kdir also the modules.
    Install(install::Args),
    /// Make Debian packages, and check and test them.
    Package(package::Args),
    /// Run make for an external module, against our kernel and modules.
    Kmake(build::KmakeArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = context::Context::new().and_then(|ctx| match &cli.command {
        Command::Setup(args) => setup::run(&ctx, args).map(|()| 0),
        Command::Build(args) => build::run(&ctx, args).map(|()| 0),
        Command::Guest(args) => guest::run(&ctx, args),
        Command::Shell(args) => guest::shell(&ctx, args),
        Command::Test(args) => test::run(&ctx, args),
        Command::Selftest(args) => selftest::run(&ctx, args),
        Command::Hostfuzz(args) => hostfuzz::command(&ctx, args),
        Command::Soak(args) => soak::run(&ctx, args),
        Command::Bench(args) => bench::run(&ctx, args),
        Command::Pmcut(args) => pmcut::run(&ctx, args),
        Command::Fault(args) => fault::run(&ctx, args),
        Command::Demo(args) => demo::run(&ctx, args),
        Command::Fuzz(args) => fuzz::run(&ctx, args),
        Command::Lint(args) => lint::run(&ctx, args),
        Command::Ide => ide::run(&ctx).map(|()| 0),
        Command::Install(args) => install::run(&ctx, args).map(|()| 0),
        Command::Package(args) => package::run(&ctx, args).map(|()| 0),
        Command::Kmake(args) => build::kmake(&ctx, args),
    });
    match result {
        Ok(status) => ExitCode::from(u8::try_from(status).unwrap_or(1)),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
