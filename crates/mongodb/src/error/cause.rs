//! The causes in the driver's errors, without the structures in which its texts show them.

use mongodb::error::{Error as Native, ErrorKind as NativeKind, WriteFailure};
/// What the driver says, reduced to its cause: without its own structures, which its texts show as its debugger would.
pub(super) fn cause_text(native: &Native) -> String {
    let server = |code: i32, message: &str| format!("error {code}: {message}");
    match &*native.kind {
        NativeKind::ServerSelection { message, .. } => of_selection(message),
        NativeKind::Write(WriteFailure::WriteError(error)) => server(error.code, &error.message),
        NativeKind::Write(WriteFailure::WriteConcernError(error)) => server(error.code, &error.message),
        NativeKind::InsertMany(error) => {
            let written = error.write_errors.iter().flatten().next().map(|error| server(error.code, &error.message));
            let concern = || error.write_concern_error.as_ref().map(|error| server(error.code, &error.message));
            written.or_else(concern).unwrap_or_else(|| "an insert failed".to_owned())
        }
        NativeKind::BulkWrite(error) => {
            let written = error.write_errors.values().next().map(|error| server(error.code, &error.message));
            written.unwrap_or_else(|| "a bulk write failed".to_owned())
        }
        NativeKind::GridFs(_) => "an error of GridFS".to_owned(),
        other => innermost(&other.to_string()),
    }
}

/// What keeps each server from being used; where none says so, what the driver was looking for.
fn of_selection(message: &str) -> String {
    let of_server = |server: &str| {
        let (address, rest) = server.split_once(',')?;
        let (_, cause) = rest.split_once("Error: ")?;
        Some(format!("{address}: {}", innermost(cause)))
    };
    let causes: Vec<_> = message.split("Address: ").skip(1).filter_map(of_server).collect();
    if !causes.is_empty() {
        return causes.join(", ");
    }
    let end = [" Topology: {", " for criteria "].into_iter().filter_map(|mark| message.find(mark)).min();
    message[..end.unwrap_or(message.len())].trim_end_matches('.').to_owned()
}

/// The cause in a text of the driver's errors: `Kind: I/O error: Connection refused (os error 111), labels: {…}, source: …`.
fn innermost(text: &str) -> String {
    let text = text.split(", labels: {").next().unwrap_or(text);
    let text = text.rsplit("Kind: ").next().unwrap_or(text);
    let text = text.strip_prefix("I/O error: ").unwrap_or(text);
    let is_number =
        |code: &str| code.ends_with(')') && code[..code.len() - 1].bytes().all(|byte| byte.is_ascii_digit());
    match text.rsplit_once(" (os error ") {
        Some((cause, code)) if is_number(code) => cause.to_owned(),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_servers_that_cannot_be_selected_the_cause_is_quoted() {
        let topology = "Server selection timeout: No available servers. Topology: { Type: ReplicaSetNoPrimary, Set Name: rs0, Servers: \
                        [ { Address: localhost:27017, Type: Unknown, Error: Kind: I/O error: Connection refused (os error 111), labels: \
                        {\"SystemOverloadedError\", \"RetryableError\"}, source: None, server response: None }, { Address: b:27018, \
                        Type: Unknown, Error: Kind: An error occurred during DNS resolution: no such host, labels: {}, source: None, \
                        server response: None } ] }";
        let causes =
            "localhost:27017: Connection refused, b:27018: An error occurred during DNS resolution: no such host";
        assert_eq!(of_selection(topology), causes);
        let unsuited = "Server selection timeout: None of the available servers suitable for criteria ReadPreference(Secondary { options: \
                        None }). Topology: { Type: ReplicaSetWithPrimary, Servers: [ { Address: a:1, Type: RsPrimary } ] }";
        assert_eq!(of_selection(unsuited), "Server selection timeout: None of the available servers suitable");
        assert_eq!(
            of_selection("Server selection timeout: No available servers. Topology: { Type: Unknown }"),
            "Server selection timeout: No available servers"
        );
        assert_eq!(innermost("I/O error: broken pipe (os error 32)"), "broken pipe");
    }
}
