//! A pickle interpreter that runs no code.
//!
//! A pickle is a program for a small stack machine that may call anything that Python can import. Here, names are
//! looked up in a list of those that `torch.save` writes ([`Global`]). Any other name ends the reading with an error
//! that contains it. Calls of the listed names create tensor descriptions and dictionaries, or nothing.
//!
//! Values are indices into arenas, so that nothing is nested in memory: deep or cyclic objects in the file have no
//! cost. The number of values that a program may push is bounded.

use std::collections::HashMap;

use super::values::{Global, Storage, TensorView, Value, global};
use crate::formats::bytes::Reader;
use crate::limits::MAX_DIMS;

type Parsed<T> = Result<T, String>;

/// The maximum number of values and marks that a program may push or memoize in total. About 40 a tensor are usual, and
/// the largest training checkpoints have a few thousand tensors. They take less than 64 MB.
const MAX_VALUES: usize = 1 << 19;

/// The interpreter, and the objects it created.
#[derive(Default)]
pub(super) struct Machine<'a> {
    stack: Vec<Value<'a>>,
    marks: Vec<usize>,
    memo: HashMap<u64, Value<'a>>,
    pushed: usize,
    lists: Vec<Vec<Value<'a>>>,
    dicts: Vec<Vec<(Value<'a>, Value<'a>)>>,
    pub(super) storages: Vec<Storage<'a>>,
    pub(super) tensors: Vec<TensorView>,
}

impl<'a> Machine<'a> {
    /// A dictionary's entries, in their order.
    pub(super) fn dict(&self, value: Value<'a>) -> Option<&[(Value<'a>, Value<'a>)]> {
        let Value::Dict(i) = value else { return None };
        self.dicts.get(i).map(Vec::as_slice)
    }

    /// A tuple's or a list's items.
    pub(super) fn items(&self, value: Value<'a>) -> Option<&[Value<'a>]> {
        let (Value::Tuple(i) | Value::List(i)) = value else { return None };
        self.lists.get(i).map(Vec::as_slice)
    }

    /// Runs one pickle, and returns its value.
    pub(super) fn run(&mut self, reader: &mut Reader<'a>) -> Parsed<Value<'a>> {
        self.stack.clear();
        self.marks.clear();
        self.memo.clear();
        loop {
            let code = reader.array::<1>()?[0];
            if code == b'.' {
                return self.pop();
            }
            self.step(code, reader)?;
        }
    }

    fn step(&mut self, code: u8, reader: &mut Reader<'a>) -> Parsed<()> {
        match code {
            0x80 => drop(reader.array::<1>()?), // the protocol
            0x95 => drop(reader.u64()?),        // a frame's length
            b'(' => {
                self.count(1)?;
                self.marks.push(self.stack.len());
            }
            b'0' => drop(self.pop()?),
            b'1' => drop(self.since_mark()?),
            b'2' => {
                let top = self.pop()?;
                self.push(top)?;
                self.push(top)?;
            }
            b'N' => self.push(Value::None)?,
            0x88 => self.push(Value::Bool(true))?,
            0x89 => self.push(Value::Bool(false))?,
            b'I' => {
                let line = line(reader)?;
                let value = match line {
                    "00" => Value::Bool(false),
                    "01" => Value::Bool(true),
                    _ => Value::Int(line.parse().map_err(|_| format!("has the number `{line}`"))?),
                };
                self.push(value)?;
            }
            b'J' => self.push(Value::Int(i32::from_le_bytes(reader.array()?).into()))?,
            b'K' => self.push(Value::Int(reader.array::<1>()?[0].into()))?,
            b'M' => self.push(Value::Int(reader.u16()?.into()))?,
            b'L' => {
                let text = line(reader)?.trim_end_matches('L');
                self.push(Value::Int(text.parse().map_err(|_| format!("has the number `{text}`"))?))?;
            }
            0x8a => {
                let length = reader.array::<1>()?[0];
                self.push(long(reader.take(length.into())?))?;
            }
            0x8b => {
                let length = reader.u32()?;
                self.push(long(reader.take_u64(length.into())?))?;
            }
            b'F' => {
                let text = line(reader)?;
                self.push(Value::Float(text.parse().map_err(|_| format!("has the number `{text}`"))?))?;
            }
            b'G' => self.push(Value::Float(f64::from_be_bytes(reader.array()?)))?,
            b'S' => {
                let text = line(reader)?;
                let inner = ['\'', '"'].iter().find_map(|&quote| text.strip_prefix(quote)?.strip_suffix(quote));
                self.push(inner.filter(|text| !text.contains('\\')).map_or(Value::Bytes, Value::Text))?;
            }
            b'V' => {
                let text = line(reader)?;
                self.push(if text.contains('\\') { Value::Bytes } else { Value::Text(text) })?;
            }
            b'T' | b'X' | b'B' => {
                let length = reader.u32()?;
                self.push_bytes(reader.take_u64(length.into())?, code != b'B')?;
            }
            b'U' | 0x8c | b'C' => {
                let length = reader.array::<1>()?[0];
                self.push_bytes(reader.take(length.into())?, code != b'C')?;
            }
            0x8d | 0x8e | 0x96 => {
                let length = reader.u64()?;
                self.push_bytes(reader.take_u64(length)?, code == 0x8d)?;
            }
            b')' => self.push_list(Vec::new(), Value::Tuple)?,
            b't' => {
                let items = self.since_mark()?;
                self.push_list(items, Value::Tuple)?;
            }
            0x85..=0x87 => {
                let first = self.stack.len().checked_sub(usize::from(code - 0x84)).ok_or_else(underflow)?;
                let items = self.stack.split_off(first);
                self.push_list(items, Value::Tuple)?;
            }
            b']' | 0x8f => self.push_list(Vec::new(), Value::List)?,
            b'l' | 0x91 => {
                let items = self.since_mark()?;
                self.push_list(items, Value::List)?;
            }
            b'a' => {
                let item = self.pop()?;
                self.extend_list(vec![item])?;
            }
            b'e' | 0x90 => {
                let items = self.since_mark()?;
                self.extend_list(items)?;
            }
            b'}' => self.push_dict(Vec::new())?,
            b'd' => {
                let items = self.since_mark()?;
                self.push_dict(pairs(&items))?;
            }
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.extend_dict(vec![(key, value)])?;
            }
            b'u' => {
                let items = self.since_mark()?;
                self.extend_dict(pairs(&items))?;
            }
            b'c' => {
                let (module, name) = (line(reader)?, line(reader)?);
                self.push(Value::Global(global(module, name)?))?;
            }
            0x93 => match (self.pop()?, self.pop()?) {
                (Value::Text(name), Value::Text(module)) => self.push(Value::Global(global(module, name)?))?,
                _ => return Err("has a global name that is not a string".into()),
            },
            b'i' => {
                let (module, name) = (line(reader)?, line(reader)?);
                let (callee, args) = (global(module, name)?, self.since_mark()?);
                self.call(Value::Global(callee), &args)?;
            }
            b'o' => {
                let items = self.since_mark()?;
                let (callee, args) = items.split_first().ok_or_else(underflow)?;
                self.call(*callee, args)?;
            }
            b'R' | 0x81 => {
                let (args, callee) = (self.pop()?, self.pop()?);
                let args = self.items(args).ok_or("calls something without arguments")?.to_vec();
                self.call(callee, &args)?;
            }
            0x92 => {
                let (_keywords, args, callee) = (self.pop()?, self.pop()?, self.pop()?);
                let args = self.items(args).ok_or("calls something without arguments")?.to_vec();
                self.call(callee, &args)?;
            }
            b'b' => drop(self.pop()?), // an object's attributes, which contain no weights
            b'P' => return Err("refers to its storages in a way that torch.save never does".into()),
            b'Q' => {
                let reference = self.pop()?;
                self.push_storage(reference)?;
            }
            b'p' | b'q' | b'r' => {
                let index = self.index(code - b'p', reader)?;
                self.remember(index)?;
            }
            0x94 => self.remember(self.memo.len() as u64)?,
            b'g' | b'h' | b'j' => {
                let index = self.index(if code == b'j' { 2 } else { code - b'g' }, reader)?;
                let value = self.memo.get(&index).copied().ok_or("refers to a value that it never created")?;
                self.push(value)?;
            }
            _ => return Err(format!("has the instruction {code:#04x}, which no checkpoint needs")),
        }
        Ok(())
    }

    /// The memo index in its three forms: a line, a byte, four bytes.
    fn index(&self, form: u8, reader: &mut Reader<'a>) -> Parsed<u64> {
        match form {
            0 => {
                let text = line(reader)?;
                text.parse().map_err(|_| format!("has the number `{text}`"))
            }
            1 => Ok(reader.array::<1>()?[0].into()),
            _ => Ok(reader.u32()?.into()),
        }
    }

    fn push(&mut self, value: Value<'a>) -> Parsed<()> {
        self.count(1)?;
        self.stack.push(value);
        Ok(())
    }

    fn count(&mut self, values: usize) -> Parsed<()> {
        self.pushed += values;
        if self.pushed > MAX_VALUES {
            return Err(format!("creates more than {MAX_VALUES} values, which no checkpoint needs"));
        }
        Ok(())
    }

    fn pop(&mut self) -> Parsed<Value<'a>> {
        self.stack.pop().ok_or_else(underflow)
    }

    fn since_mark(&mut self) -> Parsed<Vec<Value<'a>>> {
        let mark = self.marks.pop().filter(|&mark| mark <= self.stack.len()).ok_or_else(underflow)?;
        Ok(self.stack.split_off(mark))
    }

    fn remember(&mut self, index: u64) -> Parsed<()> {
        let top = *self.stack.last().ok_or_else(underflow)?;
        self.count(1)?;
        self.memo.insert(index, top);
        Ok(())
    }

    fn push_bytes(&mut self, bytes: &'a [u8], is_text: bool) -> Parsed<()> {
        let text = std::str::from_utf8(bytes).ok().filter(|_| is_text);
        self.push(text.map_or(Value::Bytes, Value::Text))
    }

    fn push_list(&mut self, items: Vec<Value<'a>>, kind: fn(usize) -> Value<'a>) -> Parsed<()> {
        self.lists.push(items);
        self.push(kind(self.lists.len() - 1))
    }

    fn push_dict(&mut self, entries: Vec<(Value<'a>, Value<'a>)>) -> Parsed<()> {
        self.dicts.push(entries);
        self.push(Value::Dict(self.dicts.len() - 1))
    }

    fn extend_list(&mut self, items: Vec<Value<'a>>) -> Parsed<()> {
        match self.stack.last() {
            Some(&Value::List(i)) => self.lists[i].extend(items), // created by `push_list`
            Some(Value::Opaque) => {}
            _ => return Err("adds items to a value that is not a list".into()),
        }
        Ok(())
    }

    fn extend_dict(&mut self, entries: Vec<(Value<'a>, Value<'a>)>) -> Parsed<()> {
        match self.stack.last() {
            Some(&Value::Dict(i)) => self.dicts[i].extend(entries), // created by `push_dict`
            Some(Value::Opaque) => {}
            _ => return Err("adds entries to a value that is not a dictionary".into()),
        }
        Ok(())
    }

    fn call(&mut self, callee: Value<'a>, args: &[Value<'a>]) -> Parsed<()> {
        self.count(args.len())?;
        match callee {
            Value::Global(Global::Dict) => {
                // Python 2 passes an ordered dictionary's entries as its single argument, a list of pairs.
                let items = args.first().and_then(|&list| self.items(list)).unwrap_or_default();
                let entries = items.iter().filter_map(|&pair| match self.items(pair)? {
                    &[key, value] => Some((key, value)),
                    _ => None,
                });
                let entries: Vec<_> = entries.collect();
                self.count(entries.len())?;
                self.push_dict(entries)
            }
            Value::Global(Global::List) => {
                let items = args.first().and_then(|&list| self.items(list)).unwrap_or_default().to_vec();
                self.count(items.len())?;
                self.push_list(items, Value::List)
            }
            Value::Global(Global::RebuildTensor) => self.push_tensor(args),
            Value::Global(Global::RebuildParameter) => {
                self.push(*args.first().ok_or("creates a parameter without a tensor")?)
            }
            Value::Global(Global::Inert) => self.push(Value::Opaque),
            _ => Err("calls a value that cannot be called".into()),
        }
    }

    /// `_rebuild_tensor_v2(storage, offset, shape, strides, ...)`.
    fn push_tensor(&mut self, args: &[Value<'a>]) -> Parsed<()> {
        let &[Value::Storage(storage), Value::Int(offset), shape, strides, ..] = args else {
            return Err("describes a tensor in an unknown way".into());
        };
        let numbers = |value| {
            let items = self.items(value).filter(|items| items.len() <= MAX_DIMS)?.iter();
            items.map(|&item| if let Value::Int(dim) = item { usize::try_from(dim).ok() } else { None }).collect()
        };
        let (Some(shape), Some(strides), Ok(offset)) = (numbers(shape), numbers(strides), usize::try_from(offset))
        else {
            return Err("describes a tensor with impossible numbers".into());
        };
        let (shape, strides): (Vec<usize>, Vec<usize>) = (shape, strides);
        if shape.len() != strides.len() {
            return Err("describes a tensor whose strides do not fit its shape".into());
        }
        self.tensors.push(TensorView { storage, offset, shape, strides });
        self.push(Value::Tensor(self.tensors.len() - 1))
    }

    /// `('storage', class, key, device, elements)`.
    fn push_storage(&mut self, reference: Value<'a>) -> Parsed<()> {
        let Some(
            &[
                Value::Text("storage"),
                Value::Global(Global::Storage(dtype)),
                Value::Text(key),
                _,
                Value::Int(length),
                ref view @ ..,
            ],
        ) = self.items(reference)
        else {
            return Err("refers to a storage in an unknown way; save it again with a newer PyTorch".into());
        };
        if !matches!(view, [] | [Value::None]) {
            return Err("has storages that are views of others; save it again with a newer PyTorch".into());
        }
        let length = u64::try_from(length).map_err(|_| "has a storage of a negative size")?;
        self.storages.push(Storage { dtype, key, length });
        self.push(Value::Storage(self.storages.len() - 1))
    }
}

fn underflow() -> String {
    "is a damaged pickle; download it again".into()
}

fn pairs<'a>(items: &[Value<'a>]) -> Vec<(Value<'a>, Value<'a>)> {
    items.as_chunks::<2>().0.iter().map(|&[key, value]| (key, value)).collect()
}

fn line<'a>(reader: &mut Reader<'a>) -> Parsed<&'a str> {
    std::str::from_utf8(reader.line()?).map_err(|_| underflow())
}

fn long(bytes: &[u8]) -> Value<'_> {
    if bytes.len() > 8 {
        return Value::Long(bytes);
    }
    let sign = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    let mut wide = [if sign { 0xff } else { 0 }; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    Value::Int(i64::from_le_bytes(wide))
}
