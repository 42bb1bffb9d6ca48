# SPDX-License-Identifier: GPL-2.0
#
# Bindings for our modules' Rust, made as rust/Makefile makes the kernel's own. Who includes this
# adds what is allowed, and gives the flags that C sources of the module get ($(c_flags)).

ifdef CONFIG_CC_IS_CLANG
kf_bindgen_c_flags = $(c_flags)
else
# Flags that GCC knows and libclang does not; the list is that of rust/Makefile.
kf_skip_c_flags := -mno-fp-ret-in-387 -mpreferred-stack-boundary=% \
	-mskip-rax-setup -mgeneral-regs-only -msign-return-address=% \
	-mindirect-branch=thunk-extern -mindirect-branch-register \
	-mfunction-return=thunk-extern -mrecord-mcount -mabi=lp64 \
	-mindirect-branch-cs-prefix -mstack-protector-guard% -mtraceback=no \
	-mno-pointers-to-nested-functions -mno-string \
	-mno-strict-align -mstrict-align -mdirect-extern-access \
	-mexplicit-relocs -mno-check-zero-division \
	-fconserve-stack -falign-jumps=% -falign-loops=% \
	-femit-struct-debug-baseonly -fno-ipa-cp-clone -fno-ipa-sra \
	-fno-partial-inlining -fplugin-arg-arm_ssp_per_task_plugin-% \
	-fno-reorder-blocks -fno-allow-store-data-races -fasan-shadow-offset=% \
	-fzero-call-used-regs=% -fno-stack-clash-protection \
	-fno-inline-functions-called-once -fsanitize=bounds-strict \
	-fstrict-flex-arrays=% -fmin-function-alignment=% \
	-fzero-init-padding-bits=% -mno-fdpic \
	-fdiagnostics-show-context -fdiagnostics-show-context=% \
	--param=% --param asan-% -fno-isolate-erroneous-paths-dereference

kf_bindgen_target_x86 := x86_64-linux-gnu
kf_bindgen_target_arm64 := aarch64-linux-gnu

kf_bindgen_c_flags = $(filter-out $(kf_skip_c_flags),$(c_flags)) \
	-w --target=$(kf_bindgen_target_$(SRCARCH))
endif

# Types of the kernel crate's bindings are not repeated.
kf_bindgen_flags = $(shell grep -Ev '^\#|^$$' $(srctree)/rust/bindgen_parameters) \
	--rust-target 1.85 --use-core --with-derive-default --ctypes-prefix ffi \
	--no-layout-tests --no-debug '.*' --enable-function-attribute-detection \
	--no-recursive-allowlist

# The C compiler's sizes and offsets, from a source compiled to assembly, as constants of Rust.
quiet_cmd_kf_layout = LAYOUT  $@
      cmd_kf_layout = \
	sed -n 's/^.*"->\([A-Z0-9_]*\) [^0-9]*\([0-9]*\) .*/pub(super) const \1: usize = \2;/p' \
	$< > $@
