"""The loop that most users of PyMongo write, and what it took.

Arguments: URL, collection, seconds and increment of the cluster time to begin at, how many changes.
"""

import json
import os
import re
import sys
import time

from bson import Timestamp
from pymongo import MongoClient

url, collection, seconds, increment, wanted = sys.argv[1:]
client = MongoClient(url)
client.admin.command("ping")
begin = Timestamp(int(seconds), int(increment))
began, used, count = time.monotonic(), time.process_time(), 0
with client.get_default_database()[collection].watch(start_at_operation_time=begin) as changes:
    for change in changes:
        count += "documentKey" in change
        if count >= int(wanted):
            break
    took, used = time.monotonic() - began, time.process_time() - used
with open("/proc/self/status") as status:
    megabytes = int(re.search(r"VmHWM:\s+(\d+)", status.read()).group(1)) / 1024
print(json.dumps({"rate": count / took, "cpu": used / count * 1e6, "megabytes": megabytes}), flush=True)
os._exit(0)
