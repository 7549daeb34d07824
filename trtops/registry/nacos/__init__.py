"""The registry on a Nacos 3 server: one namespace an environment, one configuration a document.

Whatever a decision hangs on goes over HTTP: reads that see the write just before, and writes by compare-and-swap,
each with one answer in bounded time. The official SDK (``nacos-sdk-python``) is there for what it alone can do: being
told of changes. docs/adr/0011 has the reasons.
"""
