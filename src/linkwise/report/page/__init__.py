"""The page: a plan and what ran, as one HTML file that needs nothing else. `page_data` computes, `html` writes."""
