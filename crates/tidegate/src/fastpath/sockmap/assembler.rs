//! A minimal assembler for the two BPF programs: instructions of `linux/bpf.h`, and forward jumps to a label.

use tidegate_os::bpf::{Instruction, LOAD_MAP};

/// A register: return value, arguments, callee-saved registers, and the frame pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Register {
    R0 = 0,
    R1 = 1,
    R2 = 2,
    R3 = 3,
    R4 = 4,
    /// Preserved across calls.
    R6 = 6,
    /// The stack is the 512 bytes below it.
    Stack = 10,
}

/// Helper functions of the kernel (`enum bpf_func_id`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum HelperFunction {
    MapLookup = 1,
    MapUpdate = 2,
    MapDelete = 3,
    SockHashUpdate = 70,
    MsgRedirectHash = 71,
    NetnsCookie = 122,
}

/// A jump target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JumpLabel(usize);

// Operation codes: class, width, operation.
const LDX_W: u8 = 0x61;
const ST_W: u8 = 0x62;
const STX_W: u8 = 0x63;
const STX_DW: u8 = 0x7b;
const ATOMIC_DW: u8 = 0xdb;
const MOV64_IMM: u8 = 0xb7;
const MOV64_REG: u8 = 0xbf;
const ADD64_IMM: u8 = 0x07;
const TO_BE: u8 = 0xdc;
const JA: u8 = 0x05;
const JEQ_IMM: u8 = 0x15;
const JNE_IMM: u8 = 0x55;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// A program under construction.
#[derive(Debug, Default)]
pub(super) struct Code {
    done: Vec<(u8, u8, u8, i16, i32)>,
    /// Instructions that jump, and their targets.
    jumps: Vec<(usize, JumpLabel)>,
    /// Positions of labels.
    labels: Vec<usize>,
}

impl Code {
    fn push(&mut self, code: u8, to: u8, from: u8, offset: i16, immediate: i32) {
        self.done.push((code, to, from, offset, immediate));
    }

    /// Creates a label to be placed once, later.
    pub(super) fn label(&mut self) -> JumpLabel {
        self.labels.push(usize::MAX);
        JumpLabel(self.labels.len() - 1)
    }

    /// Places the label at the next instruction.
    pub(super) fn set(&mut self, label: JumpLabel) {
        self.labels[label.0] = self.done.len();
    }

    fn jump_with(&mut self, code: u8, register: u8, value: i32, label: JumpLabel) {
        self.jumps.push((self.done.len(), label));
        self.push(code, register, 0, 0, value);
    }

    pub(super) fn jump(&mut self, label: JumpLabel) {
        self.jump_with(JA, 0, 0, label);
    }

    pub(super) fn jump_if_equal(&mut self, register: Register, value: i32, label: JumpLabel) {
        self.jump_with(JEQ_IMM, register as u8, value, label);
    }

    pub(super) fn jump_if_not(&mut self, register: Register, value: i32, label: JumpLabel) {
        self.jump_with(JNE_IMM, register as u8, value, label);
    }

    /// `to = value`
    pub(super) fn put(&mut self, to: Register, value: i32) {
        self.push(MOV64_IMM, to as u8, 0, 0, value);
    }

    /// `to = from`
    pub(super) fn copy(&mut self, to: Register, from: Register) {
        self.push(MOV64_REG, to as u8, from as u8, 0, 0);
    }

    /// `to = address of a place on the stack`
    pub(super) fn point(&mut self, to: Register, at: i16) {
        self.copy(to, Register::Stack);
        self.push(ADD64_IMM, to as u8, 0, 0, at.into());
    }

    /// `to = map`, by its index among the maps of the program
    pub(super) fn map(&mut self, to: Register, place: i32) {
        let (load, is_map) = LOAD_MAP;
        self.push(load, to as u8, is_map, 0, place);
        self.push(0, 0, 0, 0, 0); // a double-length instruction
    }

    /// `to = 32 bits at base + at`
    pub(super) fn load(&mut self, to: Register, base: Register, at: i16) {
        self.push(LDX_W, to as u8, base as u8, at, 0);
    }

    /// `32 bits on the stack = value`
    pub(super) fn keep_value(&mut self, at: i16, value: i32) {
        self.push(ST_W, Register::Stack as u8, 0, at, value);
    }

    /// `32 bits on the stack = register`
    pub(super) fn keep(&mut self, at: i16, from: Register) {
        self.push(STX_W, Register::Stack as u8, from as u8, at, 0);
    }

    /// `64 bits on the stack = register`
    pub(super) fn keep_long(&mut self, at: i16, from: Register) {
        self.push(STX_DW, Register::Stack as u8, from as u8, at, 0);
    }

    /// `64 bits at base + at += from`, atomically.
    pub(super) fn add_at(&mut self, base: Register, at: i16, from: Register) {
        self.push(ATOMIC_DW, base as u8, from as u8, at, 0);
    }

    /// `register = the low 32 bits of it in network order`
    pub(super) fn network_order(&mut self, register: Register) {
        self.push(TO_BE, register as u8, 0, 0, 32);
    }

    pub(super) fn call(&mut self, function: HelperFunction) {
        self.push(CALL, 0, 0, 0, function as i32);
    }

    /// Ends with this value.
    pub(super) fn end(&mut self, value: i32) {
        self.put(Register::R0, value);
        self.push(EXIT, 0, 0, 0, 0);
    }

    /// The program with its jump offsets filled in.
    pub(super) fn assemble(mut self) -> Vec<Instruction> {
        for (from, label) in self.jumps {
            let over = self.labels[label.0] - from - 1;
            self.done[from].3 = over as i16; // the programs are a hundred instructions long
        }
        let instruction = |(code, to, from, offset, value)| Instruction::new(code, to, from, offset, value);
        self.done.into_iter().map(instruction).collect()
    }
}
