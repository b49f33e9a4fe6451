// postgres.js: everything is prepared and sent ahead.

import postgres from "postgres";
import { BIG, CITY, COUNT, CURSOR, DAYS, FAILS, INTROSPECT, JOIN, SLOW } from "./common.mjs";
import { main, pause, summed, told } from "./common.mjs";

const { PGHOST, PGPORT, PGUSER, PGPASSWORD, PGDATABASE } = process.env;
const sql = postgres({
  host: PGHOST, port: Number(PGPORT), user: PGUSER, password: PGPASSWORD, database: PGDATABASE, max: 1,
});

const ask = (text, values) => sql.unsafe(text, values, { prepare: true });
const fails = (text) => ask(text).then(() => "nothing failed", (error) => error.code);

await main({
  connect: async () => told(await ask("SELECT version(), current_user")) + sql.parameters.server_version,
  introspect: async () => told(await ask(INTROSPECT)) + told((await ask(BIG + " LIMIT 0")).columns.map((c) => [c.name, c.type])),
  parameters: async () => {
    const all = await Promise.all([1, 2, 3, 4, 5, 6].map(() => ask(JOIN, [CITY, DAYS])));
    if (new Set(all.map(told)).size !== 1) throw new Error("the answers sent ahead differ");
    return told(all[0]);
  },
  cursor: async () => {
    const rows = [];
    for await (const part of ask(CURSOR).cursor(100)) rows.push(...part);
    return summed(rows);
  },
  big: async () => summed(await ask(BIG)),
  errors: async () => {
    const seen = await Promise.all([fails(FAILS), fails(COUNT), fails("SELECT nonesuch FROM shop.orders"), fails(COUNT)]);
    const block = await sql
      .begin(async (transaction) => {
        seen.push(told(await transaction.unsafe(COUNT)));
        await transaction.unsafe(FAILS);
      })
      .catch((error) => error.code);
    return [...seen, block, told(await ask(COUNT))];
  },
  cancel: async () => {
    const query = ask(SLOW);
    const seen = query.then(() => "nothing failed", (error) => error.code);
    await pause(1.5);
    query.cancel();
    return [await seen, told(await ask(COUNT))];
  },
});
await sql.end();
