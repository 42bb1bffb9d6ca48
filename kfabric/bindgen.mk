# SPDX-License-Identifier: GPL-2.0
#
# Bindings for our modules' Rust, made as rust/Makefile makes the kernel's own: bindings_generated.rs
# from helpers.h, with the flags that C sources of the module get ($(c_flags)), and
# layout_generated.rs from layout.c. The Kbuild that includes this makes its crate depend on both;
# kf_bindgen_allow in it replaces the list of headers that are bound.

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

kf_bindgen_allow = --allowlist-file '((\./)?|.*/$(notdir $(abspath $(src)))/)helpers\.h' \
	--blocklist-type 'file|net|page|task_struct|workqueue_struct' \
	--use-array-pointers-in-arguments

quiet_cmd_kf_bindgen = BINDGEN $@
      cmd_kf_bindgen = \
	$(BINDGEN) $< $(kf_bindgen_flags) -o $@ $(kf_bindgen_allow) \
	-- $(kf_bindgen_c_flags) -I$(src) -fno-builtin -D__BINDGEN__ -DMODULE

$(obj)/bindings_generated.rs: $(src)/helpers.h $(srctree)/rust/bindgen_parameters FORCE
	$(call if_changed_dep,kf_bindgen)

# The C compiler's sizes and offsets, from a source compiled to assembly, as constants of Rust.
quiet_cmd_kf_layout = LAYOUT  $@
      cmd_kf_layout = \
	sed -n 's/^.*"->\([A-Z0-9_]*\) [^0-9]*\([0-9]*\) .*/pub(super) const \1: usize = \2;/p' \
	$< > $@

$(obj)/layout.s: $(src)/layout.c FORCE
	$(call if_changed_dep,cc_s_c)

$(obj)/layout_generated.rs: $(obj)/layout.s FORCE
	$(call if_changed,kf_layout)

targets += bindings_generated.rs layout_generated.rs layout.s
clean-files += bindings_generated.rs layout_generated.rs layout.s
