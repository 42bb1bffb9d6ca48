// SPDX-License-Identifier: GPL-2.0
//! The thin unsafe layer.

pub(crate) mod raw;
