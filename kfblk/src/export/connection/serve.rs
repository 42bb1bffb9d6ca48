// SPDX-License-Identifier: GPL-2.0
//! Serves a connection: completions, the initiator's questions, and its admission.

use core::sync::atomic::Ordering;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kfabric::{
    pure::blk::{
        device::OTHER_KIND,
        share,
        Geometry,
        Hello,
        Question,
        Welcome,
        MESSAGE_MAX,
        PERSISTENT,
        QUESTION_MAX,
        READ_ONLY, //
    },
    uapi::*,
};

use super::{
    client::Client,
    Connection,
    Talk, //
};
use crate::{
    export::{
        self,
        block::{
            Io,
            PAGES, //
        },
        memory::KeyService,
        protocol::{
            Access,
            AnyService,
            Service, //
        }, //
    },
    msg_buf::{
        CAME,
        WENT, //
    },
    sys::{
        self,
        Log, //
    }, //
};

impl Connection {
    /// Serves completions in the completing task, if the export is block-backed and `talk` is not
    /// locked. Otherwise schedules the work. Does not end the connection: [`Connection::end`] waits
    /// for this task.
    pub(super) fn serve_here(this: &Arc<Self>) {
        let talk = match this.service.as_ref() {
            Some(service) if service.serves_in_completion() => this.talk.try_lock(),
            // Answers to questions may take long.
            _ => None,
        };
        let Some(mut talk) = talk else {
            // Queued work needs no second entry: it reads the queues when it runs.
            let _ = sys::exports().enqueue(this.clone());
            return;
        };
        if Self::serve_in(this, &mut talk).is_err() {
            drop(talk);
            return this.clone().doom();
        }
        if this.service.as_ref().is_some_and(|of| of.has_answers()) {
            // The work sends the answers after the completions of this moment, so that it can
            // combine them.
            let _ = sys::exports().enqueue(this.clone());
        }
    }

    /// Serves events, completions and questions, and sends the answers of finished requests.
    ///
    /// # Errors
    ///
    /// - Any error if the connection must be ended.
    pub(super) fn serve(this: &Arc<Self>) -> Result {
        let mut talk = this.talk.lock();
        Self::serve_in(this, &mut talk)?;
        match this.service.as_ref() {
            Some(service) if !talk.ended => service.answer(),
            _ => Ok(()),
        }
    }

    fn serve_in(this: &Arc<Self>, talk: &mut Talk) -> Result {
        if talk.ended {
            return Ok(());
        }
        let broken = this.service.as_ref().is_some_and(|of| of.is_broken());
        if broken || this.doomed.load(Ordering::Acquire) {
            return Err(EIO);
        }
        while let Some(event) = this.eq.read() {
            if event.kind != KFI_CONNECTED {
                return Err(EIO);
            }
        }
        loop {
            let mut entries = [CqEntry::default(); 4];
            let count = this.cq.read(&mut entries);
            for entry in entries.iter().take(count) {
                if entry.err != 0 {
                    return Err(EIO);
                }
                match entry.context {
                    CAME => talk.question = Some(entry.len),
                    WENT => {
                        talk.sending = false;
                        if !this.service.as_ref().is_some_and(|of| of.is_open()) {
                            // Only a refusal is sent without a service. Its completion ends the
                            // connection.
                            return Err(EIO);
                        }
                    }
                    _ => this.service.as_ref().ok_or(EIO)?.completed(entry)?,
                }
            }
            // A question may arrive before the `KFI_CONNECTED` event, which schedules the work
            // again.
            if !talk.sending && this.ep.state() == KFI_STATE_CONNECTED {
                if let Some(len) = talk.question.take() {
                    Self::answer(this, talk, len)?;
                    continue;
                }
            }
            // A later completion calls the handler again.
            if count < entries.len() {
                return Ok(());
            }
        }
    }

    /// Returns whether messages of the initiator are requests, not questions.
    fn takes_requests(&self) -> bool {
        self.service.as_ref().is_some_and(|of| of.takes_requests())
    }

    fn answer(this: &Arc<Self>, talk: &mut Talk, len: u64) -> Result {
        let mut question = [0; QUESTION_MAX];
        if len > question.len() as u64 {
            return Err(EINVAL);
        }
        let len = this.msg_buf.came(len, &mut question);
        let question = question.get(..len).unwrap_or_default();
        let question = Question::read(question).map_err(|_| EINVAL)?;
        let mut answer = KVec::from_elem(0u8, MESSAGE_MAX, GFP_KERNEL)?;
        let mut told = None;
        let len = match question {
            Question::Hello(hello) => {
                let welcome = Self::welcome(this, hello);
                told = welcome.device.map(|_| welcome.geometry.capacity);
                welcome.write(&mut answer).map_err(|_| EINVAL)?
            }
            Question::Keys(first) => {
                let service = this.service.as_ref().ok_or(EINVAL)?;
                service.assign(&this.ep, first, &mut answer)?
            }
        };
        // After the first answer, a block-backed export gets requests instead of questions.
        if !this.takes_requests() {
            this.msg_buf.recv(&this.ep)?;
        }
        talk.sending = true;
        this.msg_buf
            .send(&this.ep, answer.get(..len).unwrap_or_default())?;
        if let (Some(told), Some(client)) = (told, this.client.as_ref()) {
            client.subsystem.welcomed(this, told);
        }
        Ok(())
    }

    fn welcome(this: &Arc<Self>, hello: Hello) -> Welcome {
        let refusal = |e: Error| {
            if Log::Refusal.may() {
                pr_info!(
                    "export {}: client {} refused, errno {}\n",
                    hello.subsystem.as_str(),
                    hello.client.as_str(),
                    -e.to_errno()
                );
            }
            Welcome::refusal(e.to_errno().unsigned_abs())
        };
        let Some(subsystem) = this.port.subsystem(&hello.subsystem) else {
            return refusal(ENOENT);
        };
        let client = Client {
            hello,
            subsystem: subsystem.clone(),
        };
        // Set once, and before admission: a task that fences initiators reads it.
        if !this.client.populate(client) {
            return refusal(EINVAL);
        }
        // A task that ends the offer searches the connections that have set `client`, so check
        // again.
        let offered = this.port.subsystem(&hello.subsystem);
        if !offered.is_some_and(|of| Arc::ptr_eq(&of, &subsystem)) {
            return refusal(ENOENT);
        }
        if !this.roomy && subsystem.is_block_backed() {
            return Welcome::refusal(OTHER_KIND);
        }
        let admitted = match subsystem.admit(this.ep.domain(), &hello, this) {
            Ok(admitted) => admitted,
            Err(e) => {
                subsystem.count(false);
                return refusal(e);
            }
        };
        // A late write of a replaced connection must not overwrite a write of this one.
        for connection in admitted.stale {
            connection.revoke();
            connection.doom();
        }
        let (flags, access) = match admitted.read_only {
            true => (READ_ONLY, KFI_REMOTE_READ),
            false => (0, KFI_REMOTE_READ | KFI_REMOTE_WRITE),
        };
        let flags = match admitted.persistent {
            true => flags | PERSISTENT,
            false => flags,
        };
        if let Err(e) = this.begin_service(&admitted.access, admitted.geometry, access) {
            subsystem.count(false);
            return refusal(e);
        }
        this.admitted.store(true, Ordering::Relaxed);
        subsystem.count(true);
        this.log("connected");
        Welcome {
            status: 0,
            flags,
            geometry: admitted.geometry,
            device: admitted.access.limits(),
            instance: admitted.instance,
            boot: export::boot(),
            seq: admitted.access.seq(),
        }
    }

    /// Begins the service of the export's kind. `rights`: the rights of keys.
    ///
    /// # Errors
    ///
    /// - `EAGAIN` if the queues have no room for requests.
    /// - `ENOMEM` if there is too little memory for requests.
    /// - `EIO` if the connection is revoked, or has a service.
    fn begin_service(&self, access: &Access, geometry: Geometry, rights: u64) -> Result {
        match access {
            Access::Memory(region) => {
                let service = KeyService::new(region.clone(), geometry, rights)?;
                let revoked = self.revoked.lock();
                if *revoked {
                    service.stop();
                }
                match self.service.populate(AnyService::Memory(service)) {
                    true => Ok(()),
                    false => Err(EIO),
                }
            }
            Access::Block(device) => {
                let io = self.allocate_requests()?;
                let revoked = self.revoked.lock();
                // A task that revokes has set `revoked` already, or finds the service later.
                if *revoked || !self.service.populate(AnyService::Block(io.clone())) {
                    return Err(EIO);
                }
                drop(revoked);
                io.open(device)
            }
        }
    }

    /// Allocates the memory for block-backed requests.
    fn allocate_requests(&self) -> Result<Arc<Io>> {
        if !self.roomy {
            // The subsystem was enabled with a block device after the check in `welcome`.
            return Err(EAGAIN);
        }
        // The same amount must remain for other users. Peers without an auth key have a share per
        // address. Connections that allocate at the same time count each other.
        self.memory.store(true, Ordering::Release);
        let own = match self.is_proven() {
            true => 0,
            false => self.port.memory_of(self),
        };
        if !share::fits(sys::spare_pages(), PAGES, own) {
            return Err(ENOMEM);
        }
        Io::new(self.ep.domain(), &self.ep, self.waiter.clone())
    }
}
