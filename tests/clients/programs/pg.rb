# Ruby's pg.

require "pg"

CONNECTION = PG.connect
CONNECTION.type_map_for_results = PG::BasicTypeMapForResults.new(CONNECTION)

def ask(text, values = nil)
  (values ? CONNECTION.exec_params(text, values) : CONNECTION.exec(text)).values.inspect
end

def fails(text)
  ask(text)
  "nothing failed"
rescue PG::Error => e
  e.result.error_field(PG::Result::PG_DIAG_SQLSTATE)
end

def summed(rows)
  [rows.length, rows.sum { |row| row.fetch("delivery_id") }]
end

TASKS = {
  "connect" => -> { [CONNECTION.server_version, CONNECTION.parameter_status("client_encoding"), CONNECTION.user] },
  "introspect" => lambda do
    CONNECTION.prepare("big", ENV.fetch("BIG"))
    described = CONNECTION.describe_prepared("big")
    columns = described.nfields.times.map { |i| [described.fname(i), described.ftype(i)] }
    [columns, ask("SELECT schemaname, viewname FROM pg_views WHERE schemaname = ANY($1) ORDER BY 1, 2", ["{shop,fleet}"])]
  end,
  "parameters" => lambda do
    values = [ENV.fetch("CITY"), ENV.fetch("DAYS")]
    CONNECTION.prepare("join", ENV.fetch("JOIN"))
    rows = CONNECTION.exec_prepared("join", values).values
    raise "differs" unless rows.inspect == ask(ENV.fetch("JOIN"), values)

    rows
  end,
  "cursor" => lambda do
    rows = []
    CONNECTION.transaction do
      CONNECTION.exec("DECLARE few SCROLL CURSOR FOR #{ENV.fetch('CURSOR')}")
      while (part = CONNECTION.exec("FETCH 100 FROM few").to_a).any?
        rows.concat(part)
      end
    end
    summed(rows)
  end,
  "big" => lambda do
    streamed = []
    CONNECTION.send_query(ENV.fetch("BIG"))
    CONNECTION.set_single_row_mode
    CONNECTION.get_result.stream_each { |row| streamed << row }
    CONNECTION.get_result
    [summed(CONNECTION.exec(ENV.fetch("BIG")).to_a), summed(streamed)]
  end,
  "errors" => lambda do
    seen = [fails(ENV.fetch("FAILS")), ask(ENV.fetch("COUNT"))]
    CONNECTION.exec("BEGIN")
    seen.push(ask(ENV.fetch("COUNT")), fails(ENV.fetch("FAILS")), fails(ENV.fetch("COUNT")), CONNECTION.transaction_status)
    CONNECTION.exec("ROLLBACK")
    seen << ask(ENV.fetch("COUNT"))
  end,
  "cancel" => lambda do
    CONNECTION.send_query(ENV.fetch("SLOW"))
    sleep 1.5
    CONNECTION.cancel
    seen = CONNECTION.get_result.error_field(PG::Result::PG_DIAG_SQLSTATE)
    CONNECTION.get_result
    [seen, ask(ENV.fetch("COUNT"))]
  end
}.freeze

ARGV.each do |name|
  begin
    result = TASKS.fetch(name).call.inspect
  rescue StandardError => e
    result = "!#{e.class}: #{e.message}"
  end
  puts "#{name}\t#{result.tr("\n", ' ')}"
end
