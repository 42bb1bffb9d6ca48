// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask ide`: `rust-project.json` for rust-analyzer.
//!
//! The kernel describes its own crates (`make rust-analyzer`); here ours are
//! added, with the framework's crate as a dependency of those that name it,
//! and paths inside the build root become paths of this machine.

use crate::build::modules::{self, Profile, Toolbox};
use crate::context::Context;
use crate::progress::Step;
use crate::setup::{self, Which};
use anyhow::{bail, Context as _, Result};
use serde_json::{json, Value};
use std::path::{Path, PathBuf};

/// The name of the framework's crate.
const FRAMEWORK: &str = "kfabric";
/// Crates of the kernel that each of ours may use.
const KERNEL_CRATES: [&str; 8] = [
    "core",
    "kernel",
    "macros",
    "pin_init",
    "zerocopy",
    "zerocopy_derive",
    "ffi",
    "bindings",
];

/// Runs `ide`.
///
/// # Errors
///
/// When the kernel tree cannot describe itself, or a file named does not exist.
pub fn run(ctx: &Context) -> Result<()> {
    let rig = setup::ensure(ctx, Which::Main)?;
    let tools = Toolbox::rig(&rig);
    // Some sources are made while building; without them it is still useful.
    let dir = match modules::build(ctx, &tools, Profile::Stock) {
        Ok(built) => built.dir,
        Err(error) => {
            eprintln!("  {error:#}: what the build generates stays unknown to the editor");
            modules::folder(ctx, &tools, Profile::Stock)
        }
    };
    let step = Step::new(ctx, "rust-project.json");
    let output = tools
        .make(
            ctx,
            &dir.join(FRAMEWORK),
            &dir,
            &[],
            &["-s".to_owned(), "rust-analyzer".to_owned()],
        )
        .output()
        .context("starting make")?;
    if !output.status.success() {
        bail!(
            "make rust-analyzer: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let made = dir.join(FRAMEWORK).join("rust-project.json");
    let text =
        std::fs::read_to_string(&made).with_context(|| format!("reading {}", made.display()))?;
    let mut project: Value = serde_json::from_str(&text).context("what the kernel tree said")?;
    let _ = std::fs::remove_file(&made);
    outside(&mut project, &rig.root, &[&ctx.cache, &ctx.repo]);
    let cfg = kernel_cfg(&project)?;
    // The folder's own crate is added below, as all are.
    retain_outside(&mut project, &dir);
    let mut framework = None;
    for (folder, _) in modules::folders(&dir)? {
        for found in crates_in(&ctx.repo.join(&folder), &dir.join(&folder))? {
            let index = add(&mut project, &found, &cfg, framework)?;
            if folder == FRAMEWORK {
                framework = Some(index);
            }
        }
    }
    project["sysroot_src"] = json!(rig.root.join("usr/lib/rustlib/src/rust/library"));
    let missing = missing_files(&project);
    if !missing.is_empty() {
        bail!("these files do not exist: {}", missing.join(", "));
    }
    let path = ctx.repo.join("rust-project.json");
    std::fs::write(&path, serde_json::to_string_pretty(&project)? + "\n")?;
    step.done();
    println!("{}", path.display());
    println!("the programs stay cargo's: name both files to the editor, for instance");
    println!("    \"rust-analyzer.linkedProjects\": [\"Cargo.toml\", \"rust-project.json\"]");
    Ok(())
}

/// Turns paths inside the build root into paths of this machine. Those that
/// begin with one of `bound` are the same on both sides.
fn outside(value: &mut Value, root: &Path, bound: &[&Path]) {
    match value {
        Value::String(text) => {
            let path = Path::new(text.as_str());
            let same = bound.iter().any(|folder| path.starts_with(folder));
            if path.is_absolute() && !same {
                *text = format!("{}{text}", root.display());
            }
        }
        Value::Array(all) => all.iter_mut().for_each(|one| outside(one, root, bound)),
        Value::Object(all) => all.values_mut().for_each(|one| outside(one, root, bound)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn crates(project: &Value) -> &[Value] {
    project["crates"].as_array().map_or(&[], Vec::as_slice)
}

fn index_of(project: &Value, name: &str) -> Option<usize> {
    crates(project)
        .iter()
        .position(|one| one["display_name"] == name)
}

/// The configuration that the kernel's own crates are compiled with.
fn kernel_cfg(project: &Value) -> Result<Value> {
    let kernel = index_of(project, "kernel").context("the kernel tree names no crate `kernel`")?;
    Ok(crates(project)[kernel]["cfg"].clone())
}

/// Drops crates whose root lies in `dir`; they are the last of the list, so
/// that no number changes.
fn retain_outside(project: &mut Value, dir: &Path) {
    if let Some(all) = project["crates"].as_array_mut() {
        while all.last().is_some_and(|one| {
            one["root_module"]
                .as_str()
                .is_some_and(|root| Path::new(root).starts_with(dir))
        }) {
            all.pop();
        }
    }
}

/// One of our crates.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    name: String,
    root: PathBuf,
    /// Where generated sources are.
    made: PathBuf,
    /// Whether it is compiled against the framework's.
    uses_framework: bool,
    /// Variables that name the build folder.
    variables: Vec<String>,
}

/// The crates that a module's folder is built from, as its Kbuild has them.
fn crates_in(folder: &Path, made: &Path) -> Result<Vec<Found>> {
    let path = folder.join("Kbuild");
    let kbuild =
        std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let module = folder
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let roots = roots(&kbuild, |stem| folder.join(format!("{stem}.rs")).exists());
    Ok(roots
        .into_iter()
        .map(|stem| Found {
            name: if module == FRAMEWORK {
                FRAMEWORK.to_owned()
            } else {
                stem.rsplit('/').next().unwrap_or(&stem).to_owned()
            },
            root: folder.join(format!("{stem}.rs")),
            made: made.to_owned(),
            uses_framework: uses_framework(&kbuild),
            variables: exported(&kbuild),
        })
        .collect())
}

/// Whether a Kbuild compiles against the framework's crate.
fn uses_framework(kbuild: &str) -> bool {
    kbuild
        .lines()
        .any(|line| !line.starts_with('#') && line.contains("--extern kfabric="))
}

/// The objects of a Kbuild that come from a Rust file, without their ending.
fn roots(kbuild: &str, is_rust: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found: Vec<String> = kbuild
        .lines()
        .filter(|line| line.contains("-y ") || line.contains("-m ") || line.contains("-objs "))
        .flat_map(str::split_whitespace)
        .filter_map(|word| word.strip_suffix(".o"))
        .filter(|stem| is_rust(stem))
        .map(str::to_owned)
        .collect();
    found.sort();
    found.dedup();
    found
}

/// The variables a Kbuild hands to the compiler with the build folder in them.
fn exported(kbuild: &str) -> Vec<String> {
    kbuild
        .lines()
        .filter(|line| line.contains("$(obj)"))
        .filter_map(|line| line.split_once("export ")?.1.split_once(":="))
        .map(|(name, _)| name.trim().to_owned())
        .collect()
}

/// Adds a crate; returns its number.
fn add(project: &mut Value, found: &Found, cfg: &Value, framework: Option<usize>) -> Result<usize> {
    let mut deps = Vec::new();
    for name in KERNEL_CRATES {
        if let Some(index) = index_of(project, name) {
            deps.push(json!({"crate": index, "name": name}));
        }
    }
    if found.uses_framework {
        let index = framework
            .with_context(|| format!("{} uses the framework, which has no crate", found.name))?;
        deps.push(json!({"crate": index, "name": FRAMEWORK}));
    }
    let mut env = json!({"RUST_MODFILE": "This is only for rust-analyzer"});
    for name in &found.variables {
        env[name] = json!(found.made);
    }
    let folder = found.root.parent().unwrap_or(&found.root);
    // The framework takes in files of pure and uapi beside it.
    let around = folder.ancestors().nth(2).unwrap_or(folder);
    let one = json!({
        "display_name": found.name,
        "root_module": found.root,
        "is_workspace_member": true,
        "deps": deps,
        "cfg": cfg,
        "edition": "2021",
        "env": env,
        "source": {
            "include_dirs": [folder, found.made, around.join("pure/src"), around.join("uapi/src")],
            "exclude_dirs": [],
        },
    });
    let all = project["crates"]
        .as_array_mut()
        .context("no list of crates")?;
    all.push(one);
    Ok(all.len() - 1)
}

/// Files the project names that do not exist.
fn missing_files(project: &Value) -> Vec<String> {
    crates(project)
        .iter()
        .flat_map(|one| [&one["root_module"], &one["proc_macro_dylib_path"]])
        .chain([&project["sysroot"], &project["sysroot_src"]])
        .filter_map(Value::as_str)
        .filter(|path| !Path::new(path).exists())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KBUILD: &str = "obj-m := kverbs.o\nkverbs-y := src/main.o helpers.o\n\
        RUSTFLAGS_src/main.o := --extern kfabric=$(KFABRIC)/libkfabric.rmeta\n\
        $(obj)/src/main.o: export KVERBS_OBJ := $(abspath $(obj))\n";

    #[test]
    fn crates_are_read_from_a_kbuild() {
        assert_eq!(roots(KBUILD, |stem| stem == "src/main"), ["src/main"]);
        assert_eq!(exported(KBUILD), ["KVERBS_OBJ"]);
        assert!(uses_framework(KBUILD));
        assert!(!uses_framework("# for users: --extern kfabric=x\n"));
    }

    #[test]
    fn paths_of_the_build_root_become_paths_outside() {
        let mut value = json!({"a": "/usr/lib/x", "b": ["/repo/y", "name"]});
        outside(&mut value, Path::new("/cache/root"), &[Path::new("/repo")]);
        assert_eq!(
            value,
            json!({"a": "/cache/root/usr/lib/x", "b": ["/repo/y", "name"]})
        );
    }

    #[test]
    fn a_provider_depends_on_the_framework() {
        let mut project = json!({"crates": [{"display_name": "core"}, {"display_name": "kernel"}]});
        let mut found = Found {
            name: "kfabric".into(),
            root: "/repo/kfabric/src/lib.rs".into(),
            made: "/b/kfabric".into(),
            uses_framework: false,
            variables: vec![],
        };
        let framework = add(&mut project, &found, &json!([]), None).unwrap();
        found.uses_framework = true;
        assert!(add(&mut project, &found, &json!([]), None).is_err());
        let provider = add(&mut project, &found, &json!([]), Some(framework)).unwrap();
        let deps = project["crates"][provider]["deps"].as_array().unwrap();
        assert!(deps.contains(&json!({"crate": 2, "name": "kfabric"})));
    }
}
