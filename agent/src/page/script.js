'use strict';
// Sorts a table by the column that its headings name, if any.
function sortRows(table) {
  const heads = Array.from(table.tHead.rows[0].cells);
  const column = heads.findIndex((head) => head.hasAttribute('aria-sort'));
  if (column < 0) return;
  const sign = heads[column].getAttribute('aria-sort') === 'descending' ? -1 : 1;
  const value = (row) => row.cells[column];
  const compare = heads[column].classList.contains('number')
    ? (a, b) => Number(value(a).dataset.value) - Number(value(b).dataset.value)
    : (a, b) => value(a).textContent.localeCompare(value(b).textContent, 'en', { numeric: true });
  const body = table.tBodies[0];
  body.append(...Array.from(body.rows).sort((a, b) => sign * compare(a, b)));
}
// A click on a heading, or Enter on it, sorts by its column; another one reverses the order.
for (const table of document.querySelectorAll('table')) {
  const heads = Array.from(table.tHead.rows[0].cells);
  for (const head of heads) {
    const button = document.createElement('button');
    button.type = 'button';
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener('click', () => {
      const before = head.getAttribute('aria-sort');
      // Numbers start with the highest, texts with the first.
      const descends = before ? before === 'ascending' : head.classList.contains('number');
      heads.forEach((other) => other.removeAttribute('aria-sort'));
      head.setAttribute('aria-sort', descends ? 'descending' : 'ascending');
      sortRows(table);
    });
  }
}
