// A tool of an agent that charges for an order once, however often the model asks for it.
//
// usage: agent_tool.ts DB ORDER AMOUNT [--wait SECONDS]      after: outbox --db DB init
// Prints a JSON object for the model. Exit codes: 0 answered, 1 failed, 2 wrong usage, 3 refused because
// the order was asked for with another amount. After a failure the same ask may simply be repeated.
import { createHash } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import Database from 'better-sqlite3';

const TENANT = 'acme';
const OPERATION = 'stripe.charge';
const TOOL_VERSION = '1.0.0';

type Json = string | number | Json[] | { [name: string]: Json };
type Asked = { key: string; askedBefore: boolean };
type Outcome = { status: string; downstream_id: string | null };

/** Another action has taken this place, and asking again will not help. */
class Refused extends Error {}

/**
 * The tool. Sends nothing itself. The model chooses `order` and `amount`; `version` is for code or a
 * person who has decided that this order is to be charged otherwise. A model that could choose it could
 * charge twice.
 */
function charge(db: Database.Database, order: string, amount: number, version = 1, run = ''): Asked {
  // The key is derived from this, so it holds what the action is and nothing of how it was asked for.
  // With the id of a tool call, a trace id, Date.now() or a random number in it, every ask would be
  // another action, and the order would be charged for each.
  const args = { amount, currency: 'usd' };
  const key = deriveKey(TENANT, OPERATION, order, version, args);
  // Who asked goes into headers, which are no part of the key. Those of the first ask are sent.
  const headers: Record<string, string> = { 'x-tool-version': TOOL_VERSION };
  if (run !== '') {
    if (!/^[!-~]{1,200}$/.test(run)) throw new Error('AGENT_RUN must be 1 to 200 visible ASCII characters');
    headers['x-agent-run'] = run;
  }
  const write = db.transaction(() => {
    db.exec('CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, state TEXT)');
    // Your tool would look the order up and refuse one that is not there: a
    // misspelt order is another order, and charging for it another action.
    db.prepare("INSERT OR IGNORE INTO orders (id, state) VALUES (?, 'paying')").run(order);
    const row = { tenant: TENANT, operation: OPERATION, entity: order, version, key };
    const insert = db.prepare(
      `INSERT INTO outbox
           (tenant_id, operation, entity_id, intent_version, idempotency_key, payload, headers)
       SELECT @tenant, @operation, @entity, @version, @key, @payload, @headers
       WHERE NOT EXISTS (SELECT 1 FROM outbox WHERE tenant_id = @tenant AND idempotency_key = @key)`);
    return insert.run({ ...row, payload: JSON.stringify(args), headers: JSON.stringify(headers) }).changes;
  });
  try {
    // Only after this, the commit, may the model be answered: before it there is nothing to tell.
    return { askedBefore: write.immediate() === 0, key };
  } catch (error) {
    if (error instanceof Error && error.message.includes('exists with other arguments')) {
      throw new Refused(`${order} was asked for before with another amount; nothing was changed. Do not ` +
        'try other arguments: a change needs a new version, which a person decides on.');
    }
    throw error;
  }
}

/** The key rule: one business action has one key, in every language. */
function deriveKey(tenant: string, operation: string, entity: string, version: number, args: Json): string {
  const text = canonical({ args, entity, op: operation, tenant, v: version });
  return `${operation}:${createHash('sha256').update(text).digest('hex').slice(0, 40)}`;
}

/** JSON with sorted names, no spaces and ASCII escapes; for text and whole numbers, not for fractions. */
function canonical(value: Json): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join(',')}]`;
  if (typeof value === 'object') {
    const members = Object.keys(value).sort().map((name) => `${canonical(name)}:${canonical(value[name])}`);
    return `{${members.join(',')}}`;
  }
  if (typeof value === 'number' && !Number.isSafeInteger(value)) throw new Error(`${value} is no whole number`);
  const escape = (unit: string) => '\\u' + unit.charCodeAt(0).toString(16).padStart(4, '0');
  return JSON.stringify(value).replace(/[\u007f-\uffff]/g, escape);
}

/** The status and the receipt's id. Waits so many seconds for them, and only reads meanwhile. */
async function outcome(db: Database.Database, key: string, wait: number): Promise<Outcome> {
  const look = db.prepare(
    'SELECT status, downstream_id FROM outbox_status WHERE tenant_id = ? AND idempotency_key = ?');
  const end = performance.now() + wait * 1000;
  let seen: unknown;
  let found: Outcome = { status: 'pending', downstream_id: null };
  for (;;) {
    // Changes when another connection has committed; cheap enough to ask all the time.
    const changed = db.pragma('data_version', { simple: true });
    if (changed !== seen) found = look.get(TENANT, key) as Outcome;
    seen = changed;
    const isOpen = ['pending', 'in_flight', 'unknown'].includes(found.status);
    if (!isOpen || performance.now() >= end) return found;
    await sleep(20);
  }
}

function connect(path: string): Database.Database {
  // A file that is not there is a mistake, not a new database.
  const db = new Database(path, { fileMustExist: true, timeout: 5000 });
  db.pragma('synchronous = FULL');
  const version = db.prepare('SELECT sqlite_version()').pluck().get() as string;
  const [major, minor, patch] = version.split('.').map(Number);
  // Older versions can corrupt a WAL that several processes write back; the relay does that.
  if (major * 1e6 + minor * 1e3 + patch < 3_051_003) db.pragma('wal_autocheckpoint = 0');
  return db;
}

async function main([path, order, amount, flag, seconds, ...more]: string[]): Promise<number> {
  const wait = flag === undefined ? 0 : Number(seconds);
  if (!path || !order || more.length > 0 || !/^[1-9][0-9]{0,7}$/.test(amount ?? '')
    || (flag !== undefined && flag !== '--wait') || !(wait >= 0)) {
    console.error('usage: agent_tool.ts DB ORDER AMOUNT [--wait SECONDS]');
    console.error('AMOUNT is a whole number of cents from 1 to 99999999');
    return 2;
  }
  try {
    const db = connect(path);
    const { key, askedBefore } = charge(db, order, Number(amount), undefined, process.env.AGENT_RUN);
    const { status, downstream_id } = await outcome(db, key, wait);
    console.log(JSON.stringify({ status, idempotency_key: key, downstream_id, asked_before: askedBefore }));
    return 0;
  } catch (error) {
    console.error(JSON.stringify({ error: error instanceof Error ? error.message : String(error) }));
    return error instanceof Refused ? 3 : 1;
  }
}

void main(process.argv.slice(2)).then((code) => { process.exitCode = code; });
