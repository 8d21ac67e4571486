//! Tables of a page.

/// A table: what is in its cells, without the spaces around it.
pub struct Table {
    pub head: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

/// The tables of a text, in order. All rows have as many cells as the head.
pub fn of(text: &str) -> Vec<Table> {
    let mut tables: Vec<Table> = Vec::new();
    let mut before = "";
    for line in text.lines() {
        let is_rule = line.starts_with("|--") && before.starts_with('|');
        match (is_rule, tables.last_mut()) {
            (true, _) => tables.push(Table { head: cells(before), rows: Vec::new() }),
            (false, Some(table)) if line.starts_with('|') && before.starts_with('|') => {
                let mut row = cells(line);
                row.resize(table.head.len(), String::new());
                table.rows.push(row);
            }
            _ => {}
        }
        before = line;
    }
    tables
}

/// The cells of a line; `\|` is a character of one.
fn cells(line: &str) -> Vec<String> {
    let line = line.trim().trim_matches('|').replace("\\|", "\u{1}");
    line.split('|').map(|cell| cell.trim().replace('\u{1}', "|")).collect()
}
