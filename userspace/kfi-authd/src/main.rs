// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `kfi-authd` command: checks a policy file.

fn main() -> std::process::ExitCode {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("error: a policy file is wanted");
        return 2.into();
    };
    match kfi_authd::policy::Policy::load(path.as_ref()) {
        Ok(_) => 0.into(),
        Err(e) => {
            eprintln!("{e}");
            1.into()
        }
    }
}
