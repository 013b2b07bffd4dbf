"""The loop that most users of psycopg write over a log of changes, and what it took.

Arguments: URL, how many changes.
"""

import json
import os
import re
import sys
import time

import psycopg

url, wanted = sys.argv[1:]
NEXT = """SELECT id, entity, operation, key, before::text, after::text, time FROM watchkeeper.log
    WHERE id > %s ORDER BY id LIMIT 1000"""
last = count = 0
with psycopg.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
    began, used = time.monotonic(), time.process_time()
    while count < int(wanted):
        rows = cursor.execute(NEXT, (last,)).fetchall()
        if not rows:
            sys.exit("the log has fewer changes")
        for row in rows:
            last = row[0]
            count += 1
    took, used = time.monotonic() - began, time.process_time() - used
with open("/proc/self/status") as status:
    megabytes = int(re.search(r"VmHWM:\s+(\d+)", status.read()).group(1)) / 1024
print(json.dumps({"rate": count / took, "cpu": used / count * 1e6, "megabytes": megabytes}), flush=True)
os._exit(0)
