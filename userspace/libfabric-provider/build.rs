// SPDX-License-Identifier: MIT OR Apache-2.0
//! Linker flags of the plug-in.

fn main() {
    // Thread-local destructors and handles of the plug-in may outlive libfabric's `dlclose`.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
