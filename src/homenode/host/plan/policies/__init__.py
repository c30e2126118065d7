"""The strategies, one a file. Each is a function `plan(host, demand) -> Plan` that raises PlacementError when it must
refuse."""
