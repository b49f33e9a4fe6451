"""Ask with psycopg 3: a question, a statement with a parameter, and what the ledger says.

Run `make demo` first, or set OAR_DSN to another proxy.
"""

import os

import psycopg

DSN = os.environ.get("OAR_DSN", "postgresql://demo:demo@127.0.0.1:6432/oar")

with psycopg.connect(DSN, autocommit=True) as connection:
    # The columns of an answer depend on the question, so the question stands in the statement.
    for city, days in connection.execute(
        "SELECT pvz_city, avg FROM oar_ask('What is the average delay in days for each city?')"
        " ORDER BY avg DESC LIMIT 3"
    ):
        print(f"{city}: {days:.2f} days late")

    # SQL over published tables takes parameters like any other.
    statement = """
        SELECT d.pvz_city, count(*) AS orders
        FROM logistics.deliveries AS d JOIN marketing.promos AS p USING (order_id)
        WHERE p.promo_code = %s AND d.delay_days > %s
        GROUP BY d.pvz_city ORDER BY orders DESC, d.pvz_city LIMIT 3
    """
    for city, orders in connection.execute(statement, ("ВЕСНА25", 3)):
        print(f"{city}: {orders} late orders with ВЕСНА25")

    # Which keys went from one owner to another for that.
    for row in connection.execute(
        "SELECT from_owner, from_column, to_owner, keys FROM oar.disclosures"
        " ORDER BY at DESC LIMIT 1"
    ):
        print("{} gave {} to {}: {} keys".format(*row))

    # An error is an ordinary PostgreSQL error with a SQLSTATE.
    try:
        connection.execute("SELECT * FROM oar_ask('What is the salary of the warehouse staff?')")
    except psycopg.Error as error:
        print(f"{error.sqlstate}: not answered")
