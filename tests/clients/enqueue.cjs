// Enqueues with better-sqlite3, by the recipe of docs/sql.md. usage: enqueue.cjs DB FROM TO
const { createHash } = require('node:crypto');
const Database = require('better-sqlite3');

// JSON as Python prints it with sort_keys and ASCII escapes; enough for integers and text.
function canonical(value) {
  if (Array.isArray(value)) return '[' + value.map(canonical).join(',') + ']';
  if (value !== null && typeof value === 'object') {
    const members = Object.keys(value).sort().map((key) => canonical(key) + ':' + canonical(value[key]));
    return '{' + members.join(',') + '}';
  }
  const escape = (unit) => '\\u' + unit.charCodeAt(0).toString(16).padStart(4, '0');
  return JSON.stringify(value).replace(/[\u007f-\uffff]/g, escape);
}

function derive(tenant, operation, entity, version, args) {
  const text = canonical({ args, entity, op: operation, tenant, v: version });
  return operation + ':' + createHash('sha256').update(text).digest('hex').slice(0, 40);
}

const [path, first, last] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4])];
const db = new Database(path, { timeout: 30000 });
db.pragma('synchronous = FULL');
db.exec('CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, state TEXT)');
const insert = db.prepare(
  `INSERT INTO outbox (tenant_id, operation, entity_id, idempotency_key, payload)
   SELECT 'acme', 'pay', @entity, @key, @payload
   WHERE NOT EXISTS (SELECT 1 FROM outbox WHERE tenant_id = 'acme' AND idempotency_key = @key)`);
const order = db.prepare(`INSERT INTO orders (id, state) VALUES (?, 'paying')`);
for (let n = first; n < last; n++) {
  const entity = `js-${n}`;
  const args = { unit: 'é', amount: n };
  const key = derive('acme', 'pay', entity, 1, args);
  db.transaction(() => {
    order.run(entity);
    insert.run({ entity, key, payload: JSON.stringify(args) });
    if (insert.run({ entity, key, payload: '{}' }).changes !== 0) throw new Error('enqueued twice');
  }).immediate();
  console.log(key);
}
