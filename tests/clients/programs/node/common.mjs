// What the programs share; see ../python/common.py for what a program does.

export const { COUNT, JOIN, CURSOR, BIG, FAILS, SLOW, CITY } = process.env;
export const DAYS = Number(process.env.DAYS);
export const INTROSPECT =
  "SELECT table_schema, table_name, column_name, data_type FROM information_schema.columns" +
  " WHERE table_schema IN ('shop', 'fleet') ORDER BY 1, 2, ordinal_position";

export const told = (rows) => JSON.stringify(rows);

export function summed(rows) {
  let deliveries = 0;
  for (const row of rows) deliveries += Number(row.delivery_id);
  return `${rows.length} rows, ${deliveries}`;
}

export const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

export async function main(tasks) {
  for (const name of process.argv.slice(2)) {
    let result;
    try {
      result = String(await tasks[name]());
    } catch (error) {
      result = `!${error.code ?? ""} ${error.message}`;
    }
    console.log(`${name}\t${result.replaceAll("\n", " ")}`);
  }
}
