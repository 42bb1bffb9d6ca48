// SPDX-License-Identifier: MIT OR Apache-2.0

//! The callable interface, and the sensible values of each field of each call.
//!
//! There is one [`Shape`] for each ioctl, for each structure that an ioctl points to, and for each
//! other system call that makes sense on our descriptors and memory.

use kfabric_uapi::*;
use std::mem::offset_of;
use std::sync::OnceLock;

/// Kind of object that a call makes, or that a field refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Fabric,
    Domain,
    Eq,
    Cq,
    Cntr,
    Pep,
    Ep,
    Region,
    Key,
    Request,
    /// A mapped ring.
    Map,
    /// A set of descriptors.
    Epoll,
    /// A descriptor of memory that two programs share.
    Rings,
}

/// A part of the program's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Area {
    /// Structures of calls, one slot for each.
    Call,
    /// Operations to submit.
    Ops,
    /// Other memory that a call points to.
    Data,
    /// A page whose neighbour is not mapped.
    Edge,
    /// The unmapped neighbour.
    Hole,
    /// Read-only pages.
    Ro,
    /// Shared pages to register.
    Shm,
    /// Private pages to register.
    Play,
}

impl Area {
    /// Every area, in address order.
    pub const ALL: [Area; 8] = [
        Area::Call,
        Area::Ops,
        Area::Data,
        Area::Edge,
        Area::Hole,
        Area::Ro,
        Area::Shm,
        Area::Play,
    ];

    /// Returns the area's name in a program's text.
    pub fn name(self) -> &'static str {
        match self {
            Area::Call => "call",
            Area::Ops => "ops",
            Area::Data => "data",
            Area::Edge => "edge",
            Area::Hole => "hole",
            Area::Ro => "ro",
            Area::Shm => "shm",
            Area::Play => "play",
        }
    }

    /// Returns the area's number of pages.
    pub fn pages(self) -> usize {
        match self {
            Area::Call => 8,
            Area::Ops => 4,
            Area::Data => 16,
            Area::Edge | Area::Hole => 1,
            Area::Ro => 2,
            Area::Shm => 16,
            Area::Play => 64,
        }
    }
}

/// Kind of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Name {
    Provider,
    Fabric,
    Domain,
}

/// Class of values that a field may have.
#[derive(Clone, Copy, Debug)]
pub enum Class {
    /// An open file, 0 to 3.
    File,
    /// Address of the structure.
    Place(Area),
    /// Size that the structure states.
    Size(u32),
    /// Bytes beyond the structure that the kernel knows.
    Tail,
    /// A handle of one of these kinds.
    Handle(&'static [Kind]),
    /// A descriptor of one of these kinds.
    Fd(&'static [Kind]),
    /// A key value.
    Key,
    /// An address that belongs to a key.
    At,
    /// Any of these bits.
    Bits(&'static [u64]),
    /// A number of this list, usually the first.
    Num(&'static [u64]),
    /// A pointer.
    Ptr(Area, u32),
    /// A pointer, or mostly none.
    Maybe(Area, u32),
    /// A socket address of the list.
    Addr,
    /// A name of this kind.
    Name(Name),
    /// Milliseconds from now; `u64::MAX`: never.
    Deadline,
    /// Only zero is valid.
    Zero,
}

/// A field of a structure, or an argument.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Name of the field.
    pub name: &'static str,
    /// Offset of the field; [`NOWHERE`]: not in the structure.
    pub at: usize,
    /// Width in bytes.
    pub width: usize,
    /// Class of its values.
    pub class: Class,
}

/// Offset of an argument that is in no structure.
pub const NOWHERE: usize = usize::MAX;

/// Part of a call's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A handle, or a mapping's address.
    Handle,
    /// A descriptor.
    Fd,
    /// A key.
    Key,
    /// The address that belongs to the key.
    At,
    /// The handle with the next generation.
    Later,
    /// The handle with the next index.
    Next,
}

/// Position of a result.
#[derive(Clone, Copy, Debug)]
pub struct Out {
    /// Part of the result.
    pub part: Part,
    /// Offset in the structure.
    pub at: usize,
    /// Width in bytes.
    pub width: usize,
    /// Whether a pointer at this offset points to the result.
    pub via: bool,
}

/// Another system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Sys {
    Open,
    Dup,
    CloseFile,
    Close,
    Mmap,
    Munmap,
    Mprotect,
    Mremap,
    RingWrite,
    Consume,
    Poll,
    Epoll,
    Io,
    Memory,
    Fdinfo,
    Fork,
    Raw,
    Flip,
    Sleep,
    Nofile,
    Fill,
}

/// How a call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// An ioctl of this number.
    Ioctl(u32),
    /// No call: the structure is written to this area, at `slot` times its size.
    Write(Area),
    /// Another system call.
    Sys(Sys),
}

/// Description of a call.
#[derive(Debug)]
pub struct Shape {
    /// Name in a program's text.
    pub name: &'static str,
    /// How the call is made.
    pub what: What,
    /// Size of the structure in bytes.
    pub size: usize,
    /// Fields and arguments.
    pub fields: Vec<Field>,
    /// Results.
    pub outs: Vec<Out>,
    /// Kind of the object that the call makes.
    pub makes: Option<Kind>,
    /// Relative frequency of the call.
    pub weight: usize,
}

impl Shape {
    /// Returns the index of a field in [`Shape::fields`].
    pub fn field(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|field| field.name == name)
    }
}

/// Returns the width of the field that `_field` selects.
const fn width<T, F>(_field: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

macro_rules! fields {
    ($ty:ty: $($field:ident $class:expr),* $(,)?) => {
        vec![$(Field {
            name: stringify!($field),
            at: offset_of!($ty, $field),
            width: width::<$ty, _>(|x| &x.$field),
            class: $class,
        }),*]
    };
}

macro_rules! outs {
    ($ty:ty: $($field:ident $part:ident $($via:ident)?),*) => {
        vec![$(Out {
            part: Part::$part,
            at: offset_of!($ty, $field),
            width: width::<$ty, _>(|x| &x.$field),
            via: false $(|| stringify!($via) == "via")?,
        }),*]
    };
}

macro_rules! ioctl {
    ($name:literal, $ty:ident, $weight:literal, $makes:expr, [$($fields:tt)*], [$($outs:tt)*]) => {{
        let mut fields = vec![
            Field { name: "file", at: NOWHERE, width: 8, class: Class::File },
            Field { name: "place", at: NOWHERE, width: 8, class: Class::Place(Area::Call) },
            Field { name: "tail", at: NOWHERE, width: 8, class: Class::Tail },
            Field { name: "size", at: 0, width: 4, class: Class::Size(size_of::<$ty>() as u32) },
        ];
        fields.extend(fields!($ty: $($fields)*));
        Shape {
            name: $name,
            what: What::Ioctl($ty::NR),
            size: size_of::<$ty>(),
            fields,
            outs: outs!($ty: $($outs)*),
            makes: $makes,
            weight: $weight,
        }
    }};
}

fn arg(name: &'static str, class: Class) -> Field {
    Field {
        name,
        at: NOWHERE,
        width: 8,
        class,
    }
}

fn sys(
    name: &'static str,
    sys: Sys,
    weight: usize,
    makes: Option<Kind>,
    fields: Vec<Field>,
) -> Shape {
    Shape {
        name,
        what: What::Sys(sys),
        size: 0,
        fields,
        outs: Vec::new(),
        makes,
        weight,
    }
}

const DEPTHS: &[u64] = &[
    0,
    1,
    2,
    3,
    4,
    16,
    64,
    128,
    1 << 12,
    1 << 16,
    (1 << 16) + 1,
    1 << 18,
    (1 << 18) + 1,
    u32::MAX as u64,
];
const SIZES: &[u64] = &[
    0,
    1,
    2,
    4,
    16,
    128,
    129,
    1024,
    4096,
    1 << 16,
    u32::MAX as u64,
];
const CONTEXTS: &[u64] = &[0, 1, 2, 3, 0xffff_ffff_ffff_ffff];
const LENGTHS: &[u64] = &[
    4096,
    0,
    1,
    7,
    8,
    64,
    65,
    100,
    4095,
    4097,
    8192,
    65536,
    1 << 20,
    1 << 31,
    1 << 32,
    1 << 40,
    u64::MAX,
    1 << 63,
];
const OFFSETS: &[u64] = &[
    0,
    1,
    8,
    4088,
    4095,
    4096,
    8192,
    65535,
    1 << 32,
    u64::MAX,
    u64::MAX - 4095,
];
const PARAM_LEN: &[u64] = &[0, 1, 8, 56, 57, 64, 100, 148, 192, 193, u32::MAX as u64];
const COUNTS: &[u64] = &[8, 0, 1, 2, 3, 4, 64, 300, 4096, u32::MAX as u64];
const ACCESS: &[u64] = &[
    KFI_SEND,
    KFI_RECV,
    KFI_READ,
    KFI_WRITE,
    KFI_REMOTE_READ,
    KFI_REMOTE_WRITE,
    1,
    1 << 63,
];
const CAPS: &[u64] = &[
    KFI_MSG,
    KFI_RMA,
    KFI_ATOMIC,
    KFI_READ,
    KFI_WRITE,
    KFI_RECV,
    KFI_SEND,
    KFI_REMOTE_READ,
    KFI_REMOTE_WRITE,
    KFI_REMOTE_COMM,
    KFI_LOCAL_COMM,
    KFI_DYNAMIC_KEYS,
    KFI_EP_KEYS,
    KFI_SINGLE_USE_KEYS,
    1 << 63,
];
const MODES: &[u64] = &[
    KFI_MR_LOCAL,
    KFI_MR_VIRT_ADDR,
    KFI_MR_ALLOCATED,
    KFI_MR_PROV_KEY,
    1 << 30,
];
const FDS: &[Kind] = &[Kind::Cq, Kind::Eq, Kind::Epoll, Kind::Rings];
const PAGE_COUNTS: &[u64] = &[1, 0, 2, 4, 16, 64];

/// Returns every call, built once.
pub fn book() -> &'static [Shape] {
    static BOOK: OnceLock<Vec<Shape>> = OnceLock::new();
    BOOK.get_or_init(shapes)
}

/// Returns the index in [`book`] of the call called `name`.
pub fn named(name: &str) -> Option<usize> {
    book().iter().position(|shape| shape.name == name)
}

fn shapes() -> Vec<Shape> {
    use Class::*;
    use Kind as K;
    let mut all = vec![
        ioctl!("getinfo", GetInfo, 4, None,
            [flags Bits(&[]), hints Ptr(Area::Data, 0), entries Ptr(Area::Data, 4096), count Num(COUNTS),
             entry_size Num(&[368, 0, 1, 351, 352, 353, 359, 360, 361, 367, 369, 376, 4096, 4097]), reserved Zero], []),
        ioctl!("fabric_open", FabricOpen, 3, Some(K::Fabric),
            [flags Bits(&[]), prov_name Name(self::Name::Provider), fabric_name Name(self::Name::Fabric)], [handle Handle]),
        ioctl!("domain_open", DomainOpen, 3, Some(K::Domain),
            [flags Bits(&[KFI_DOMAIN_STRICT_KEYS as u64]), fabric Handle(&[K::Fabric]), name Name(self::Name::Domain), auth_key Maybe(Area::Data, 64), auth_key_size Num(&[0, 16, 65]),
             reserved Zero, reserved2 Zero], [handle Handle]),
        ioctl!("eq_open", EqOpen, 3, Some(K::Eq),
            [flags Bits(&[]), fabric Handle(&[K::Fabric]), depth Num(DEPTHS)], [handle Handle, fd Fd]),
        ioctl!("cq_open", CqOpen, 5, Some(K::Cq),
            [flags Bits(&[]), domain Handle(&[K::Domain]), depth Num(DEPTHS), format Num(&[0, 1, 2, 3, 4]), reserved Zero],
            [handle Handle, fd Fd]),
        ioctl!("cntr_open", CntrOpen, 3, Some(K::Cntr),
            [flags Bits(&[]), domain Handle(&[K::Domain]), reserved Zero], [handle Handle]),
        ioctl!("pep_open", PepOpen, 3, Some(K::Pep),
            [flags Bits(&[]), fabric Handle(&[K::Fabric]), eq Handle(&[K::Eq]), addr Addr, context Num(CONTEXTS),
             auth_keys Maybe(Area::Ops, 0), auth_key_count Num(&[0, 1, 2, 8, 9]), reserved Zero], [handle Handle]),
        ioctl!("ep_open", EpOpen, 4, Some(K::Ep),
            [flags Bits(&[KFI_EP_OWN_KEYS as u64, KFI_EP_RINGS as u64, KFI_EP_STRICT_KEYS as u64]), domain Handle(&[K::Domain]), connreq Handle(&[K::Request]), src_addr Addr, context Num(CONTEXTS),
             tx_size Num(SIZES), rx_size Num(SIZES), iov_limit Num(&[0, 1, 4, 5]), rings_version Num(&[0, 1]), auth_key Maybe(Area::Data, 64),
             auth_key_size Num(&[0, 16, 65]), reserved2 Zero], [handle Handle]),
        ioctl!("bind", Bind, 5, None,
            [flags Bits(&[]), ep Handle(&[K::Ep]), object Handle(&[K::Eq, K::Cq, K::Cntr]),
             bind_flags Bits(&[KFI_SEND, KFI_RECV, KFI_READ, KFI_WRITE, KFI_SELECTIVE_COMPLETION, 1])], []),
        ioctl!("enable", ObjectCall, 3, None, [flags Bits(&[]), handle Handle(&[K::Ep])], []),
        ioctl!("listen", Listen, 3, None,
            [flags Bits(&[]), pep Handle(&[K::Pep]), backlog Num(SIZES), reserved Zero], []),
        ioctl!("connect", Connect, 3, None,
            [flags Bits(&[]), ep Handle(&[K::Ep]), addr Addr, param Ptr(Area::Data, 1024), param_len Num(PARAM_LEN), reserved Zero], []),
        ioctl!("accept", Accept, 3, None,
            [flags Bits(&[]), ep Handle(&[K::Ep]), param Ptr(Area::Data, 1024), param_len Num(PARAM_LEN), reserved Zero], []),
        ioctl!("reject", Reject, 3, None,
            [flags Bits(&[]), connreq Handle(&[K::Request]), param Ptr(Area::Data, 1024), param_len Num(PARAM_LEN), reserved Zero], []),
        ioctl!("shutdown", Shutdown, 3, None, [flags Bits(&[]), ep Handle(&[K::Ep])], []),
        ioctl!("getname", GetName, 3, None,
            [flags Bits(&[]), handle Handle(&[K::Ep, K::Pep]), peer Num(&[0, 1, 2]), reserved Zero], []),
        ioctl!("eq_read", EqRead, 5, Some(K::Request),
            [flags Bits(&[1]), eq Handle(&[K::Eq]), data Ptr(Area::Data, 8192), data_len Num(&[4096, 0, 1, 55, 56, 192]),
             info Ptr(Area::Data, 16384)], [connreq Handle]),
        ioctl!("cntr_ctl", CntrCtl, 3, None,
            [flags Bits(&[]), cntr Handle(&[K::Cntr]), op Num(&[0, 1, 2, 3, 4, 5]), reserved Zero, value Num(CONTEXTS)], []),
        ioctl!("cntr_wait", CntrWait, 3, None,
            [flags Bits(&[KFI_CNTR_WAIT_CHANGE as u64]), cntr Handle(&[K::Cntr]), threshold Num(CONTEXTS), deadline Deadline, reserved Zero,
             errors Num(&[0, 1])], []),
        ioctl!("region_reg", RegionReg, 6, Some(K::Region),
            [flags Bits(&[1, 2, 4, 8]), domain Handle(&[K::Domain]), addr Ptr(Area::Play, 0), len Num(LENGTHS), access Bits(ACCESS),
             ep Handle(&[K::Ep]), auth_key Maybe(Area::Data, 64), auth_key_size Num(&[0, 16, 65])],
            [handle Handle, key Key, remote_addr At]),
        ioctl!("key_alloc", KeyAlloc, 4, Some(K::Key),
            [flags Bits(&[]), region Handle(&[K::Region]), count Num(&[1, 0, 2, 3, 70, 4097]), reserved Zero,
             handles Ptr(Area::Data, 20480), ep Handle(&[K::Ep]), auth_key Maybe(Area::Data, 64), auth_key_size Num(&[0, 16, 65])],
            [handles Handle via]),
        ioctl!("key_assign", KeyAssign, 5, None,
            [flags Bits(&[KFI_KEY_ORDERED as u64, KFI_KEY_SINGLE_USE as u64]), slot Handle(&[K::Key]), offset Num(OFFSETS), length Num(LENGTHS),
             access Bits(&[KFI_REMOTE_READ, KFI_REMOTE_WRITE, KFI_SEND, KFI_ATOMIC]), cq Handle(&[K::Cq]), context Num(&[0, 7])], [key Key, remote_addr At]),
        ioctl!("key_revoke", ObjectCall2, 3, None, [flags Bits(&[]), handle Handle(&[K::Key])], []),
        ioctl!("key_assign_many", KeyAssignMany, 5, None,
            [flags Bits(&[KFI_KEY_ORDERED as u64, KFI_KEY_SINGLE_USE as u64]), entries Ptr(Area::Ops, 0), count Num(&[1, 0, 2, 3, 8, 64, 65, 130, 4097]),
             entry_size Num(&[48, 0, 47, 49, 96]), cq Handle(&[K::Cq]), context Num(&[0, 7])], []),
        ioctl!("key_revoke_many", KeyRevokeMany, 3, None,
            [flags Bits(&[]), scope Num(&[0, 1, 2, 3, 4, 5]), count Num(&[0, 1, 2, 3, 64, 65, 130, 4097]),
             object Handle(&[K::Region, K::Domain, K::Ep]), slots Maybe(Area::Data, 20480)], []),
        ioctl!("submit", Submit, 8, None,
            [flags Bits(&[]), ep Handle(&[K::Ep]), ops Ptr(Area::Ops, 0), count Num(&[1, 0, 2, 3, 4, 5, 9, 64, 1024, 1025]),
             entry_size Num(&[168, 0, 167, 169, 336])], []),
        // Only written programs change the mode, because a mode that forbids opens hides everything
        // else. It is restored after each program.
        ioctl!("auth_mode", AuthMode, 2, None,
            [flags Bits(&[2, 4, 8]), mode Num(&[0, 1, 2]), timeout_ms Num(&[1, 0, 100, 600_001]), deny_ms Num(&[0, 1, 600_001]),
             asks Num(&[64, 0, 1, 4097]), reserved Zero], []),
        ioctl!("grant_add", GrantAdd, 4, None,
            [flags Bits(&[]), auth_key Ptr(Area::Data, 64), auth_key_size Num(&[16, 0, 1, 64, 65]), match_ Bits(&[1, 2, 4, 8, 16, 32]),
             pidfd Num(&[0, 1000]), netns_fd Num(&[0, 1000]), rights Bits(&[1, 2, 4]), uid Num(&[0, 1, 65_534]), gid Num(&[0, 1]), cgroup Num(&[0, 1]), max_keys Num(&[0, 1, 100]),
             max_eps Num(&[0, 1]), max_pinned Num(&[0, 4096]), lifetime_ms Num(&[1, 0, 50]), reserved Zero], [id At]),
        ioctl!("grant_change", GrantChange, 2, None,
            [flags Bits(&[1, 2]), id At, max_pinned Num(&[0, 1]), max_keys Num(&[0, 1]), max_eps Num(&[0, 1]), lifetime_ms Num(&[0, 1, 50])], []),
        ioctl!("grant_revoke", GrantRevoke, 2, None, [flags Bits(&[]), id At, reserved Zero], []),
        ioctl!("grant_list", GrantList, 2, None,
            [flags Bits(&[]), entries Ptr(Area::Data, 4096), count Num(COUNTS), entry_size Num(&[104, 0, 103, 105, 4097]), reserved Zero], []),
        ioctl!("agent_open", AgentOpen, 2, None, [flags Bits(&[]), reserved Zero], []),
        ioctl!("agent_next", AgentNext, 2, None,
            [flags Bits(&[]), auth_key Ptr(Area::Data, 64), groups Maybe(Area::Data, 64), cgroup_path Maybe(Area::Data, 64),
             groups_count Num(&[0, 1, 16, 65_536]), cgroup_path_size Num(&[0, 1, 64, 4096]), reserved Zero], [id At]),
        ioctl!("agent_answer", AgentAnswer, 2, None,
            [flags Bits(&[]), id At, verdict Num(&[1, 0, 2]), match_ Bits(&[1, 2, 16]), rights Bits(&[1, 2]), max_keys Num(&[0, 1]),
             max_pinned Num(&[0, 1]), lifetime_ms Num(&[0, 1, 50]), max_eps Num(&[0, 1]), reserved Zero], [grant At]),
        ioctl!("atomic_query", AtomicQuery, 2, None,
            [flags Bits(&[]), domain Handle(&[K::Domain]), op Num(&[4, 5, 6, 3, 7]), atomic_op Num(&[2, 0, 10, 12, 19]),
             datatype Num(&[7, 0, 8])], []),
        ioctl!("ep_rings", EpRings, 3, Some(K::Rings), [flags Bits(&[]), ep Handle(&[K::Ep])], [fd Fd]),
        ioctl!("ep_wake", EpWake, 3, None,
            [flags Bits(&[KFI_WAKE_SELF as u64]), ep Handle(&[K::Ep])], []),
        ioctl!("cancel", Cancel, 3, None, [flags Bits(&[]), ep Handle(&[K::Ep]), context Num(CONTEXTS)], []),
        ioctl!("close_object", Close, 6, None,
            [flags Bits(&[]), handle Handle(&[K::Fabric, K::Domain, K::Eq, K::Cq, K::Cntr, K::Pep, K::Ep, K::Region, K::Key, K::Request])], []),
        ioctl!("obj_list", ObjList, 4, None,
            [flags Bits(&[]), entries Ptr(Area::Data, 4096), count Num(COUNTS), entry_size Num(&[176, 0, 127, 128, 136, 144, 177, 256, 4096, 4097]),
             reserved Zero], []),
    ];
    let slot = |n| arg("slot", Num(n));
    let mut entry = vec![slot(&[0, 1, 2, 3, 4, 5, 6, 7, 8])];
    entry.extend(fields!(OpEntry: op Num(&[0, 1, 2, 3, 4, 5, 6, 7]), iov_count Num(&[1, 0, 2, 3, 4, 5]),
        flags Bits(&[KFI_COMPLETION, KFI_INJECT, KFI_REMOTE_CQ_DATA, KFI_FENCE, 1]), context Num(CONTEXTS),
        data Num(CONTEXTS), remote_addr At, key Key, inject Maybe(Area::Data, 1024), inject_len Num(&[0, 8, 16, 1, 64, 65, u64::MAX]),
        atomic_op Num(&[0, 2, 10, 12, 18, 19]), datatype Num(&[0, 7, 6, 2, 8])));
    for (i, names) in [
        ["region0", "offset0", "len0"],
        ["region1", "offset1", "len1"],
        ["region2", "offset2", "len2"],
        ["region3", "offset3", "len3"],
    ]
    .iter()
    .enumerate()
    {
        let base = offset_of!(OpEntry, iov) + i * size_of::<Iov>();
        let one = [Handle(&[K::Region]), Num(OFFSETS), Num(LENGTHS)];
        for (n, (name, class)) in names.iter().zip(one).enumerate() {
            entry.push(Field {
                name,
                at: base + 8 * n,
                width: 8,
                class,
            });
        }
    }
    all.push(Shape {
        name: "entry",
        what: What::Write(Area::Ops),
        size: size_of::<OpEntry>(),
        fields: entry,
        outs: Vec::new(),
        makes: None,
        weight: 7,
    });
    // At the place of operations: a call of the other kind reads these bytes as its own, which is a
    // test too.
    let mut entry = vec![slot(&[0, 1, 2, 3, 4, 5, 6, 7, 63, 64])];
    entry.push(Field {
        name: "of",
        at: offset_of!(KeyEntry, slot),
        width: 8,
        class: Handle(&[K::Key]),
    });
    entry.extend(fields!(KeyEntry: offset Num(OFFSETS), length Num(LENGTHS),
        access Bits(&[KFI_REMOTE_READ, KFI_REMOTE_WRITE, KFI_SEND])));
    all.push(Shape {
        name: "key_entry",
        what: What::Write(Area::Ops),
        size: size_of::<KeyEntry>(),
        fields: entry,
        outs: Vec::new(),
        makes: None,
        weight: 5,
    });
    let mut entry = vec![slot(&[0, 1, 2, 7])];
    entry.extend(
        fields!(AuthKeyRef: addr Ptr(Area::Data, 64), size Num(&[16, 0, 1, 64, 65]), reserved Zero),
    );
    all.push(Shape {
        name: "auth_key",
        what: What::Write(Area::Ops),
        size: size_of::<AuthKeyRef>(),
        fields: entry,
        outs: Vec::new(),
        makes: None,
        weight: 1,
    });
    let mut hints = vec![slot(&[0])];
    hints.extend(fields!(InfoEntry: caps Bits(CAPS), mode Bits(CAPS), mr_mode Bits(MODES), max_msg_size Num(LENGTHS),
        inject_size Num(SIZES), tx_size Num(SIZES), rx_size Num(SIZES), iov_limit Num(SIZES), rma_iov_limit Num(SIZES),
        cq_data_size Num(SIZES), mr_key_size Num(SIZES), cm_data_size Num(SIZES), ep_type Num(&[0, 1, 2]),
        protocol Num(&[0, 1, 14, 99]), addr_format Num(&[0, 1, 2, 3, 9]), api_version Num(&[0, 1 << 16, 2 << 16, 3 << 16]),
        abi Num(&[0, 1, 2]), src_addr Addr, dest_addr Addr, prov_name Name(self::Name::Provider),
        fabric_name Name(self::Name::Fabric), domain_name Name(self::Name::Domain)));
    all.push(Shape {
        name: "hints",
        what: What::Write(Area::Data),
        size: size_of::<InfoEntry>(),
        fields: hints,
        outs: Vec::new(),
        makes: None,
        weight: 2,
    });
    all.extend(system_calls());
    all
}

/// Returns the system calls that are not ioctls.
fn system_calls() -> Vec<Shape> {
    use Class::*;
    use Kind as K;
    const MAP: &[Kind] = &[K::Map];
    vec![
        sys(
            "open",
            Sys::Open,
            2,
            None,
            vec![arg("file", Num(&[1, 2, 3, 0]))],
        ),
        sys(
            "dup",
            Sys::Dup,
            1,
            None,
            vec![arg("file", File), arg("to", Num(&[1, 2, 3, 0]))],
        ),
        sys(
            "close_file",
            Sys::CloseFile,
            2,
            None,
            vec![arg("file", File)],
        ),
        sys("close", Sys::Close, 2, None, vec![arg("fd", Fd(FDS))]),
        sys(
            "mmap",
            Sys::Mmap,
            5,
            Some(K::Map),
            vec![
                arg("fd", Fd(FDS)),
                arg(
                    "len",
                    Num(&[8192, 4096, 1, 0, 12288, 69632, 139_264, 1 << 24, 1 << 40]),
                ),
                arg("off", Num(&[0, 4096, 8192, 1 << 32, u64::MAX - 4095])),
                arg("prot", Num(&[3, 0, 1, 2, 4, 5, 7])),
                arg("flags", Num(&[1, 2, 0x8001, 0x2001, 0x4002])),
                // Far away, page tables are missing, too.
                arg("hint", Num(&[0, 1 << 45, 1 << 44, 1 << 63])),
            ],
        ),
        sys(
            "munmap",
            Sys::Munmap,
            2,
            None,
            vec![
                arg("map", Handle(MAP)),
                arg("off", Num(&[0, 4096, 8192])),
                arg("len", Num(&[8192, 4096, 1 << 20])),
            ],
        ),
        sys(
            "mprotect",
            Sys::Mprotect,
            2,
            None,
            vec![arg("map", Handle(MAP)), arg("prot", Num(&[1, 0, 3, 5, 7]))],
        ),
        sys(
            "mremap",
            Sys::Mremap,
            1,
            None,
            vec![
                arg("map", Handle(MAP)),
                arg("len", Num(&[4096, 8192, 1 << 20])),
            ],
        ),
        sys(
            "ring_write",
            Sys::RingWrite,
            5,
            None,
            vec![
                arg("map", Handle(MAP)),
                arg("off", Num(&[128, 0, 4, 8, 12, 132, 256, 4096, 4160])),
                arg(
                    "value",
                    Num(&[
                        0,
                        1,
                        2,
                        3,
                        4,
                        5,
                        16,
                        1024,
                        1 << 31,
                        u32::MAX as u64,
                        u32::MAX as u64 - 3,
                    ]),
                ),
            ],
        ),
        sys(
            "consume",
            Sys::Consume,
            3,
            None,
            vec![
                arg("map", Handle(MAP)),
                arg("count", Num(&[1, 2, 3, 64, 1 << 20])),
            ],
        ),
        sys(
            "poll",
            Sys::Poll,
            4,
            None,
            vec![
                arg("fd", Fd(FDS)),
                arg("events", Num(&[1, 0, 4, 0x3f])),
                arg("ms", Num(&[0, 1, 10, 300])),
            ],
        ),
        sys(
            "epoll",
            Sys::Epoll,
            2,
            Some(K::Epoll),
            vec![
                arg("fd", Fd(FDS)),
                arg("events", Num(&[1, 5, 0x8000_0001, 0x4000_0001])),
                arg("ms", Num(&[0, 1, 10])),
            ],
        ),
        sys(
            "io",
            Sys::Io,
            1,
            None,
            vec![
                arg("fd", Fd(FDS)),
                arg("file", File),
                arg("how", Num(&[0, 1, 2, 3, 4, 5, 6, 7])),
            ],
        ),
        sys(
            "memory",
            Sys::Memory,
            3,
            None,
            vec![
                arg("at", Ptr(Area::Play, 0)),
                arg("pages", Num(PAGE_COUNTS)),
                arg("how", Num(&[0, 1, 2, 3, 4, 5])),
            ],
        ),
        sys("fdinfo", Sys::Fdinfo, 1, None, vec![arg("file", File)]),
        sys(
            "fork",
            Sys::Fork,
            1,
            None,
            vec![
                arg("file", File),
                arg("how", Num(&[0, 1, 2, 3])),
                arg("handle", Handle(&[K::Ep, K::Region, K::Cq])),
            ],
        ),
        sys(
            "raw",
            Sys::Raw,
            2,
            None,
            vec![
                arg("file", File),
                arg("nr", Num(&[0, 1, 4, 0x17, 0x1a, 0x1b, 0x1c, 0x3f, 0xff])),
                arg("dir", Num(&[3, 0, 1, 2])),
                arg("type", Num(&[0xbf, 0, 0xbe])),
                arg("size", Num(&[40, 0, 16, 8191])),
                arg("at", Ptr(Area::Data, 128)),
            ],
        ),
        sys(
            "flip",
            Sys::Flip,
            2,
            None,
            vec![
                arg(
                    "slot",
                    Num(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]),
                ),
                arg("off", Num(&[0, 4, 8, 16, 24, 32, 40])),
                arg("value", Num(&[0, 1, 8, 4096, u64::MAX])),
                arg("times", Num(&[100, 1000])),
            ],
        ),
        sys(
            "sleep",
            Sys::Sleep,
            1,
            None,
            vec![arg("ms", Num(&[0, 1, 5, 20]))],
        ),
        sys(
            "nofile",
            Sys::Nofile,
            1,
            None,
            vec![arg("free", Num(&[0, 1, 2, 1000]))],
        ),
        sys(
            "fill",
            Sys::Fill,
            1,
            None,
            vec![arg("file", File), arg("domain", Handle(&[K::Domain]))],
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ioctl_has_a_shape() {
        let all = shapes();
        for (nr, name) in KFI_IOCTLS {
            assert!(all.iter().any(|s| s.what == What::Ioctl(*nr)), "{name}");
        }
    }

    #[test]
    fn entry_sizes_are_those_of_the_interface() {
        let all = shapes();
        for (shape, size) in [
            ("getinfo", size_of::<InfoEntry>()),
            ("obj_list", size_of::<ObjInfo>()),
            ("submit", size_of::<OpEntry>()),
        ] {
            let shape = all.iter().find(|s| s.name == shape).unwrap();
            let field = shape.fields[shape.field("entry_size").unwrap()];
            let Class::Num(values) = field.class else {
                panic!("{field:?}")
            };
            assert_eq!(values[0], size as u64, "{}", shape.name);
        }
    }
}
