// node-postgres, and pg-cursor for portals.

import pg from "pg";
import Cursor from "pg-cursor";
import { BIG, CITY, COUNT, CURSOR, DAYS, FAILS, INTROSPECT, JOIN, SLOW } from "./common.mjs";
import { main, pause, summed, told } from "./common.mjs";

const client = new pg.Client();
await client.connect();

const ask = async (text, values) => (await client.query(text, values)).rows;
const fails = (text, values) => client.query(text, values).then(() => "nothing failed", (error) => error.code);

await main({
  connect: async () => told(await ask("SELECT version(), current_user, pg_backend_pid() AS pid"))
    .replace(`"pid":${client.processID}`, '"pid":"as told"'),
  introspect: async () => told(await ask(INTROSPECT)),
  parameters: async () => {
    const named = { name: "join", text: JOIN, values: [CITY, DAYS] };
    const first = told(await ask(JOIN, [CITY, DAYS]));
    for (let i = 0; i < 2; i++)
      if (told((await client.query(named)).rows) !== first) throw new Error("the named statement differs");
    const several = await client.query(`${COUNT}; SELECT 1 AS one; ${COUNT}`);
    return first + told(several.map((each) => each.rows));
  },
  cursor: async () => {
    await client.query("BEGIN");
    const cursor = client.query(new Cursor(CURSOR));
    const rows = [];
    for (;;) {
      const part = await cursor.read(100);
      if (!part.length) break;
      rows.push(...part);
    }
    await cursor.close();
    const left = client.query(new Cursor(CURSOR));
    const few = (await left.read(7)).length;
    await left.close();
    await client.query("COMMIT");
    return `${summed(rows)} ${few}`;
  },
  big: async () => summed(await ask(BIG)),
  errors: async () => {
    const seen = [await fails(FAILS), await fails(FAILS, []), told(await ask(COUNT))];
    await client.query("BEGIN");
    seen.push(told(await ask(COUNT)), await fails(FAILS), await fails(COUNT));
    await client.query("ROLLBACK");
    return [...seen, told(await ask(COUNT))];
  },
  cancel: async () => {
    const query = client.query(SLOW).then(() => "nothing failed", (error) => error.code);
    await pause(1.5);
    const other = new pg.Client();
    await other.connect();
    await other.query("SELECT pg_cancel_backend($1)", [client.processID]);
    await other.end();
    return [await query, told(await ask(COUNT))];
  },
});
await client.end();
