'use strict';
// Sorts tables: a click on a heading, or Enter on it, sorts by its column; another one reverses the order.
for (const table of document.querySelectorAll('table')) {
  const heads = Array.from(table.tHead.rows[0].cells);
  heads.forEach((head, column) => {
    const button = document.createElement('button');
    button.type = 'button';
    button.append(...head.childNodes);
    head.append(button);
    const isNumber = head.classList.contains('number');
    button.addEventListener('click', () => {
      const before = head.getAttribute('aria-sort');
      // Numbers start with the highest, texts with the first.
      const descends = before ? before === 'ascending' : isNumber;
      heads.forEach((other) => other.removeAttribute('aria-sort'));
      head.setAttribute('aria-sort', descends ? 'descending' : 'ascending');
      const sign = descends ? -1 : 1;
      const value = (row) => row.cells[column];
      const compare = isNumber
        ? (a, b) => Number(value(a).dataset.value) - Number(value(b).dataset.value)
        : (a, b) => value(a).textContent.localeCompare(value(b).textContent, 'en', { numeric: true });
      const body = table.tBodies[0];
      body.append(...Array.from(body.rows).sort((a, b) => sign * compare(a, b)));
    });
  });
}
