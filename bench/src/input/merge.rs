//! The three files of a directory as one stream in order of time.
//!
//! Rows of equal time come as person, auction, bid, and within a file in the file's order. The
//! position in that order is the ordinal, whoever reads: every worker reads all rows and keeps
//! those of its share.

use std::path::Path;

use super::columns::Table;
use super::table::TableReader;
use crate::nexmark::{Event, EventSource, Record, Stride};
use alluvium::Time;

use crate::Result;

/// Events from `person.csv`, `auction.csv` and `bid.csv`; holds one row of each in memory.
pub struct CsvStream {
    tables: Vec<(TableReader, Option<Event>)>,
    stride: Stride,
    ordinal: u64,
}

impl CsvStream {
    /// Opens the files of `dir` and reads their headers and first rows.
    ///
    /// # Errors
    /// Says which file is not there or which line and column is wrong.
    pub fn open(dir: &Path, stride: Stride) -> Result<Self> {
        let mut tables = Vec::new();
        for table in Table::ALL {
            let mut reader = TableReader::open(dir.join(table.file_name()), table)?;
            let first = reader.next()?;
            tables.push((reader, first));
        }
        Ok(CsvStream { tables, stride, ordinal: 0 })
    }

    /// The next row of any table.
    fn take_first(&mut self) -> Result<Option<Record>> {
        let heads = self.tables.iter_mut().filter(|(_, head)| head.is_some());
        // The first of equals is taken, and the tables are in the order of precedence.
        let Some((reader, head)) = heads.min_by_key(|(_, head)| head.as_ref().map(Event::time))
        else {
            return Ok(None);
        };
        let event = head.take();
        *head = reader.next()?;
        let ordinal = self.ordinal;
        self.ordinal += 1;
        Ok(event.map(|event| Record { ordinal, event }))
    }
}

impl EventSource for CsvStream {
    /// The next event of this share. After an error the stream is not to be used further.
    fn next_record(&mut self) -> Result<Option<Record>> {
        while let Some(record) = self.take_first()? {
            if self.stride.contains(record.ordinal) {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }

    fn watermark(&self) -> Time {
        let heads = self.tables.iter().filter_map(|(_, head)| head.as_ref());
        heads.map(Event::time).min().unwrap_or(Time::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;
    use crate::input::export;
    use crate::nexmark::{Config, Generator};

    const PERSON: &str =
        "id,name,email_address,credit_card,city,state,date_time_ms,extra\n1,A,,,Bend,OR,5,\n";
    const AUCTION: &str = "id,item_name,description,initial_bid,reserve,date_time_ms,expires_ms,\
                           seller,category,extra\n7,x,\"a, b\",1,2,5,9,1,10,\n";
    const BID: &str = "auction,bidder,price,channel,url,date_time_ms,extra\n7,1,3,c,u,4,\"\"\"\n\"\n\
                       7,1,4,c,u,5,\n";

    fn dir_with(person: &str, auction: &str, bid: &[u8]) -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("person.csv"), person).unwrap();
        fs::write(dir.path().join("auction.csv"), auction).unwrap();
        fs::write(dir.path().join("bid.csv"), bid).unwrap();
        dir
    }

    fn read(dir: &TempDir, stride: Stride) -> Result<Vec<Record>> {
        let mut stream = CsvStream::open(dir.path(), stride)?;
        std::iter::from_fn(|| stream.next_record().transpose()).collect()
    }

    fn refusal(person: &str, auction: &str, bid: &[u8]) -> String {
        read(&dir_with(person, auction, bid), Stride::ALL).unwrap_err().to_string()
    }

    #[test]
    fn rows_of_equal_time_come_as_person_auction_bid() {
        let dir = dir_with(PERSON, AUCTION, BID.as_bytes());
        let rows = read(&dir, Stride::ALL).unwrap();
        let tables: Vec<_> = rows.iter().map(|row| Table::of(&row.event)).collect();
        assert_eq!(tables, [Table::Bid, Table::Person, Table::Auction, Table::Bid]);
        assert!(matches!(&rows[0].event, Event::Bid(bid) if bid.extra() == "\"\n"));
        assert!(matches!(&rows[2].event, Event::Auction(a) if a.description() == "a, b"));
        let halves = [0, 1].map(|k| read(&dir, Stride::of_worker(k, 2)).unwrap());
        assert_eq!(halves[1], [rows[1].clone(), rows[3].clone()]);
        assert_eq!(halves[0].len(), 2);
    }

    #[test]
    fn the_watermark_is_the_time_of_the_next_row() {
        let mut stream =
            CsvStream::open(dir_with(PERSON, AUCTION, BID.as_bytes()).path(), Stride::ALL).unwrap();
        let mut found = vec![stream.watermark().as_ms()];
        while stream.next_record().unwrap().is_some() {
            found.push(stream.watermark().as_ms());
        }
        assert_eq!(found, [4, 5, 5, 5, Time::MAX.as_ms()]);
    }

    #[test]
    fn a_malformed_row_is_named_by_file_line_and_column() {
        for (bid, line, expected) in [
            ("7,1,x,c,u,5,\n", 3, "column price: \"x\" is not a whole number"),
            ("7,-1,3,c,u,5,\n", 3, "column bidder: \"-1\""),
            ("7,1,,c,u,5,\n", 3, "column price: \"\""),
            ("7,1,3,c,u,99999999999999999,\n", 3, "column date_time_ms"),
            ("7,1,3,c,u\n", 3, "5 fields, the header has 7"),
            ("7,1,3,c,u,3,\n", 3, "column date_time_ms: 3 is before 4"),
            ("7,1,3,c,u,5,\n7,1,3,c,u,5,\"cut", 4, "inside a quoted field"),
        ] {
            let header = "auction,bidder,price,channel,url,date_time_ms,extra\n7,1,3,c,u,4,\n";
            let message = refusal(PERSON, AUCTION, format!("{header}{bid}").as_bytes());
            assert!(message.contains("bid.csv: line "), "{message}");
            assert!(message.contains(expected), "{message}");
            let exact = message.contains(&format!("line {line}"));
            assert!(exact || expected.contains("quoted"), "{message}");
        }
        let message = refusal(
            PERSON,
            AUCTION,
            b"auction,bidder,price,channel,url,date_time_ms,extra\n7,1,3,\xff,u,4,\n",
        );
        assert!(message.contains("line 2, column channel: not UTF-8"), "{message}");
    }

    #[test]
    fn a_missing_column_or_file_is_named() {
        let message = refusal("id,name\n1,A\n", AUCTION, BID.as_bytes());
        assert!(message.contains("person.csv: line 1, column email_address"), "{message}");
        let message = refusal("", AUCTION, BID.as_bytes());
        assert!(message.contains("person.csv: line 1, column id"), "{message}");
        let dir = dir_with(PERSON, AUCTION, BID.as_bytes());
        fs::remove_file(dir.path().join("auction.csv")).unwrap();
        assert!(read(&dir, Stride::ALL).unwrap_err().to_string().contains("auction.csv"));
    }

    #[test]
    fn a_generated_stream_survives_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let stream = || Generator::new(Config::default(), Stride::ALL).unwrap().take(2_000);
        export(dir.path(), stream()).unwrap();
        let mut expected: Vec<_> = stream().map(|record| record.event).collect();
        expected.sort_by_key(|event| (event.time(), Table::of(event)));
        let found = read(&dir, Stride::ALL).unwrap().into_iter().map(|record| record.event);
        assert!(found.eq(expected));
    }
}
