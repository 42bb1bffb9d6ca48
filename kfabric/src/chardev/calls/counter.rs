// SPDX-License-Identifier: GPL-2.0
//! The calls on counters.

use kernel::prelude::*;

use crate::{
    chardev::{
        args::zero,
        file::File,
        handles::Object,
        undo::Undo, //
    },
    objects::cntr::{
        Cntr,
        Counts, //
    },
    sys,
    uapi::*,
};

pub(crate) fn cntr_open(file: &File, call: &mut CntrOpen) -> Result<Undo> {
    zero(&[call.flags])?;
    if call.reserved != 0 {
        return Err(EINVAL);
    }
    let cntr = Cntr::open(&file.handles.domain(call.domain)?)?;
    call.handle = file.publish(Object::Cntr(cntr), call.domain)?;
    Ok(Undo::Object(call.handle))
}

pub(crate) fn cntr_ctl(file: &File, call: &mut CntrCtl) -> Result<Undo> {
    zero(&[call.flags, call.reserved])?;
    let cntr = file.handles.cntr(call.cntr)?;
    let operand = call.value;
    let mut by = Counts::default();
    let mut update = |change: fn(&mut Counts, u64)| {
        cntr.update(|c| {
            let before = *c;
            change(c, operand);
            by.value = c.value.wrapping_sub(before.value);
            by.errors = c.errors.wrapping_sub(before.errors);
        });
    };
    match call.op {
        KFI_CNTR_READ => {}
        KFI_CNTR_ADD => update(|c, operand| c.value = c.value.wrapping_add(operand)),
        KFI_CNTR_SET => update(|c, operand| c.value = operand),
        KFI_CNTR_ADDERR => update(|c, operand| c.errors = c.errors.wrapping_add(operand)),
        KFI_CNTR_SETERR => update(|c, operand| c.errors = operand),
        _ => return Err(EINVAL),
    }
    let counts = cntr.read();
    call.value = counts.value;
    call.errors = counts.errors;
    Ok(Undo::Counter(cntr, by))
}

pub(crate) fn cntr_wait(file: &File, call: &mut CntrWait) -> Result<Undo> {
    let change = call.flags & KFI_CNTR_WAIT_CHANGE != 0;
    zero(&[call.flags & !KFI_CNTR_WAIT_CHANGE])?;
    if call.reserved != 0 || !change && call.errors != 0 {
        return Err(EINVAL);
    }
    // The program's clock is that of its time namespace.
    let deadline = sys::monotonic_here(call.deadline);
    let cntr = file.handles.cntr(call.cntr)?;
    if change {
        let seen = Counts {
            value: call.threshold,
            errors: call.errors,
        };
        cntr.wait_change(seen, deadline)?;
    } else {
        cntr.wait(call.threshold, deadline)?;
    }
    Ok(Undo::NoAnswer)
}
