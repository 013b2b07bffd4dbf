//! Just enough of MongoDB's protocol to run an administrator's command, so that no driver is needed here.

use std::io::{Error, Read, Result, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

/// A value of a command.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    Flag(bool),
    Number(i32),
    Text(String),
    Document(Vec<(String, Value)>),
    List(Vec<Value>),
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<i32> for Value {
    fn from(number: i32) -> Self {
        Self::Number(number)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// A document of these fields.
pub(crate) fn document<const N: usize>(fields: [(&str, Value); N]) -> Value {
    Value::Document(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

impl Value {
    fn kind(&self) -> u8 {
        match self {
            Self::Text(_) => 0x02,
            Self::Document(_) => 0x03,
            Self::List(_) => 0x04,
            Self::Flag(_) => 0x08,
            Self::Number(_) => 0x10,
        }
    }

    fn encode(&self) -> Vec<u8> {
        match self {
            Self::Flag(flag) => vec![u8::from(*flag)],
            Self::Number(number) => number.to_le_bytes().to_vec(),
            Self::Text(text) => {
                let mut bytes = length(text.len() + 1).to_vec();
                bytes.extend_from_slice(text.as_bytes());
                bytes.push(0);
                bytes
            }
            Self::Document(fields) => encode_fields(fields.iter().map(|(name, value)| (name.clone(), value))),
            Self::List(values) => encode_fields(values.iter().enumerate().map(|(at, value)| (at.to_string(), value))),
        }
    }
}

fn encode_fields<'a>(fields: impl Iterator<Item = (String, &'a Value)>) -> Vec<u8> {
    let mut inner = Vec::new();
    for (name, value) in fields {
        inner.push(value.kind());
        inner.extend_from_slice(name.as_bytes());
        inner.push(0);
        inner.extend(value.encode());
    }
    inner.push(0);
    let mut bytes = length(inner.len() + 4).to_vec();
    bytes.extend(inner);
    bytes
}

fn length(bytes: usize) -> [u8; 4] {
    i32::try_from(bytes).expect("a command is short").to_le_bytes()
}

/// What a server answered: the bytes of a document.
#[derive(Debug)]
pub(crate) struct Answer(Vec<u8>);

impl Answer {
    /// Whether the first field of this name and kind (a flag) is set.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.after(0x08, name).and_then(|rest| rest.first()).is_some_and(|byte| *byte == 1)
    }

    /// The first text of this name.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        let rest = self.after(0x02, name)?;
        let length = u32::from_le_bytes(rest.get(..4)?.try_into().ok()?) as usize;
        String::from_utf8(rest.get(4..3 + length)?.to_vec()).ok()
    }

    /// Whether the command succeeded; if not, what was said.
    pub(crate) fn ok(&self) -> Result<()> {
        match self.text("errmsg") {
            None => Ok(()),
            Some(message) => Err(Error::other(message)),
        }
    }

    /// The bytes behind the header of a field. Names are looked for in the whole answer; those that are asked for are
    /// nowhere inside of others.
    fn after(&self, kind: u8, name: &str) -> Option<&[u8]> {
        let header = [&[kind], name.as_bytes(), &[0]].concat();
        let at = self.0.windows(header.len()).position(|window| window == header)?;
        Some(&self.0[at + header.len()..])
    }
}

/// Runs a command of the database `admin` on the server at this port.
pub(crate) fn command<const N: usize>(port: u16, fields: [(&str, Value); N]) -> Result<Answer> {
    let Value::Document(mut fields) = document(fields) else { unreachable!("a document was just made") };
    fields.push(("$db".to_owned(), "admin".into()));
    let body = Value::Document(fields).encode();
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    // Length, number, number answered to, kind of message (2013), flags, kind of section, document.
    let mut message = length(16 + 4 + 1 + body.len()).to_vec();
    for number in [1_i32, 0, 2013, 0] {
        message.extend_from_slice(&number.to_le_bytes());
    }
    message.push(0);
    message.extend(body);
    stream.write_all(&message)?;
    let mut header = [0; 16];
    stream.read_exact(&mut header)?;
    let total = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
    let mut rest = vec![0; total.saturating_sub(16)];
    stream.read_exact(&mut rest)?;
    Ok(Answer(rest.split_off(5.min(rest.len()))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_written_as_the_protocol_has_them() {
        let bytes = document([("a", 1.into()), ("b", document([("c", "x".into())]))]).encode();
        let expected = b"\x1d\0\0\0\x10a\0\x01\0\0\0\x03b\0\x0e\0\0\0\x02c\0\x02\0\0\0x\0\0\0";
        assert_eq!(bytes, expected);
        let answer = Answer(bytes);
        assert_eq!(answer.text("c").as_deref(), Some("x"));
        assert!(answer.ok().is_ok());
    }
}
